"""Where the documents lead, and what they may not hold."""

import ast
import re
from functools import cache

import pytest

from tests import ROOT
from tests.docs.pages import PAGES, anchors, links, name_of, read

by_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@by_page
def test_every_link_leads_to_something(page):
    for link in links(page.read_text()):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


@by_page
def test_no_page_names_a_path_of_somebodys_machine(page):
    assert not re.search(r"/(?:tmp|work|root|home)/", page.read_text())


def test_every_page_is_in_the_table_of_contents():
    index = ROOT / "docs" / "index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index.read_text())}
    assert reached | {index} == set(PAGES)


def test_the_readme_is_short_and_shows_two_pictures():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    pictures = [ROOT / link for link in links(readme) if link.endswith(".png")]
    assert len(pictures) == 2
    assert all(0 < picture.stat().st_size < 200_000 for picture in pictures)


# Promises


def promises() -> list[tuple[str, list[str]]]:
    """Each promise, and the tests that are named below it."""
    parts = re.split(r"^\*\*(.+)\*\*$", read("promises.md"), flags=re.MULTILINE)
    return [
        (promise, re.findall(r"^- \[`([^`]+)`\]", rest, re.MULTILINE))
        for promise, rest in zip(parts[1::2], parts[2::2], strict=True)
    ]


@cache
def names_of_tests(path: str) -> set[str]:
    """The names of a file's tests, those of its classes included."""
    return {
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_promise_has_a_test():
    assert promises()
    for promise, tests in promises():
        assert tests, promise


def test_every_test_that_a_promise_names_exists():
    for path, name in {tuple(name.split("::")) for _, tests in promises() for name in tests}:
        assert name in names_of_tests(path), f"{path}::{name}"


def test_every_link_of_a_promise_leads_to_the_file_that_it_names():
    lines = re.findall(r"^- \[`([^`]+)::\w+`\]\(\.\./(.+)\)$", read("promises.md"), re.MULTILINE)
    assert len(lines) == sum(len(tests) for _, tests in promises())
    assert all(named == linked for named, linked in lines)
