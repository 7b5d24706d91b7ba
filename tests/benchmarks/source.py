"""How large the source is and how it hangs together: ``python -m tests.benchmarks.source [FOLDER]``.

FOLDER is a checkout, this one unless given. Migrations do not count.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

APPS = ("runs", "chat", "project")
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Source:
    """What is counted of an app."""

    at_root: int  # modules at the root of the app
    arrows: int  # pairs of its rooms and root modules of which one imports the other
    lines: int  # of code, without imports, comments and docstrings


def measure(folder: Path, app: str) -> Source:
    """Count an app of the checkout in this folder."""
    files = {file: file.read_text() for file in _modules(folder / app)}
    rooms = {_room(file, folder / app) for file in files}
    arrows = {
        (_room(file, folder / app), room)
        for file, text in files.items()
        for room in _imported(ast.parse(text), app)
        if room in rooms and room != _room(file, folder / app)
    }
    at_root = [file for file in files if file.parent == folder / app and file.stem != "__init__"]
    return Source(len(at_root), len(arrows), sum(map(_lines, files.values())))


def _modules(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*.py") if "migrations" not in file.parts)


def _room(file: Path, app: Path) -> str:
    return file.relative_to(app).parts[0].removesuffix(".py")


def _imported(tree: ast.Module, app: str) -> Iterator[str]:
    """The rooms and root modules of the app that are imported, but for annotations."""
    for_annotations = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inside in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_annotations:
            top, *rooms = node.module.split(".")
            if top == app:
                yield from rooms[:1] or [name.name for name in node.names]


def _lines(text: str) -> int:
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                left_out.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - left_out)


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    found = {app: measure(folder, app) for app in APPS}
    for app, source in found.items():
        print(f"{app}: {source.at_root} modules at the root, {source.arrows} arrows, {source.lines} lines")
    print(f"all: {sum(source.lines for source in found.values())} lines")


if __name__ == "__main__":
    main()
