"""Reads the Markdown pages: sections, tables, programs, links and anchors."""

import re
from pathlib import Path

from tests import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(name: str) -> str:
    """The text of a page below docs/."""
    return (ROOT / "docs" / name).read_text()


def section(name: str, title: str) -> str:
    """The part of a page below one of its second headings."""
    return read(name).split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, without its head."""
    found = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [[_cells(line) for line in table.splitlines()[2:]] for table in found]


def first_words(rows: list[list[str]]) -> list[str]:
    """The first cell of each row, without its backticks."""
    return [row[0].strip("`") for row in rows]


def programs(text: str, language: str) -> list[str]:
    """What stands between fences of this language."""
    return [program for _, its_language, program in _FENCED.findall(text) if its_language == language]


def links(text: str) -> list[str]:
    """Where Markdown's links and the pictures lead, but for those in code."""
    prose = re.sub(r"`[^`\n]*`", "code", _FENCED.sub("", text))
    return re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
