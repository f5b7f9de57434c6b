"""Counting lines of code, and the files that a change touched."""

from __future__ import annotations

from pathlib import Path

from hack.size import Size, classify, difference, measure, measure_tree, table

_SOURCE = '''\
"""A module,

described on three lines."""

import os
from pathlib import (
    Path,
)

# A comment.
LIMIT = 1
"""An attribute."""


def text() -> str:
    """Return two lines."""
    return """first

second"""  # not a docstring
'''


def test_counts_code_without_docstrings_comments_and_blank_lines():
    size = measure(_SOURCE)
    assert (size.files, size.lines, size.small, size.long) == (1, 19, 1, 0)
    assert size.docstrings == 3 + 1 + 1
    assert size.imports == 1 + 3
    assert size.code == 4 + 1 + 1 + 3


def test_long_functions_are_counted_by_their_code():
    body = "    work()\n"
    assert measure(f"def short():\n{body * 39}").long == 0
    assert measure(f"def long():\n{body * 40}").long == 1
    assert measure(f'def documented():\n    """{"x" * 3}\n\n    """\n{body * 39}').long == 0


def test_total_of_a_tree_has_the_product_only(tmp_path: Path):
    for path in ("webhook/a.py", "swarm/deep/b.py", "tests/c.py", "other/d.py"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("x = 1\n")
    sizes = measure_tree(tmp_path)
    assert set(sizes) == {"webhook", "swarm", "tests"}
    assert "| product | 2 | 2 | 2 | 0 | 0 | 2 | 0 |" in table(sizes)


def test_difference_counts_new_and_removed_packages():
    small, large = Size(files=1, lines=5), Size(files=2, lines=3)
    assert difference({"a": small, "b": small}, {"a": large, "c": large}) == {
        "a": Size(files=1, lines=-2), "b": Size(files=-1, lines=-5), "c": large,
    }  # fmt: skip


def test_changed_files_are_counted_by_top_directory():
    assert classify(["webhook/a.py", "swarm/web/page.js", "docs/x.md", "README.md"]) == {
        "product": 2, "docs": 1, "top": 1,
    }  # fmt: skip
