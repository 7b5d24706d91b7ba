"""What is counted of the source."""

from tests.benchmarks.source import Source, measure


def test_code_is_counted_without_imports_comments_and_docstrings(tmp_path):
    app = tmp_path / "app"
    (app / "room").mkdir(parents=True)
    (app / "room" / "inside.py").write_text('"""Says."""\n\nfrom app import low\n\n# Why.\nNUMBER = 1\n')
    (app / "low.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from app.room import inside\n\n\n"
        'def one() -> int:\n    """Gives."""\n    return 1\n'
    )
    assert measure(tmp_path, "app") == Source(at_root=1, arrows=1, lines=4)
