"""Generated parts of a page."""

from __future__ import annotations

import pytest

from hack.plots.page import put


def test_replaces_one_table():
    page = "a\n<!-- t -->\nold\n<!-- end of t -->\nb\n"
    assert put(page, "t", "new") == "a\n<!-- t -->\nnew\n<!-- end of t -->\nb\n"


def test_leaves_a_page_without_the_table():
    assert put("a\n", "t", "new") == "a\n"


def test_a_table_without_end_would_remove_the_rest_of_the_page():
    with pytest.raises(ValueError, match="no line <!-- end of t -->"):
        put("a\n<!-- t -->\nold\nb\n", "t", "new")
