"""The size of the next page of a list."""

from __future__ import annotations

import pytest

from controller_runtime.client.collection import ListPages
from controller_runtime.errors import Expired, ResponseTooLarge

EXPIRED = Expired("the token is too old", code=410)
TOO_LARGE = ResponseTooLarge("too large")


def test_requests_smaller_pages_down_to_one_object() -> None:
    """A page that is too large is requested again with fewer objects, at last with one."""
    pages = ListPages({"labelSelector": "a"}, size=500)
    pages.follow("token")
    asked = []
    for _ in range(4):
        pages.shrink(TOO_LARGE)
        asked.append(pages.params)
    assert [page["limit"] for page in asked] == ["100", "20", "4", "1"]
    assert all(page["continue"] == "token" and page["labelSelector"] == "a" for page in asked)
    with pytest.raises(ResponseTooLarge):
        pages.shrink(TOO_LARGE)


def test_size_grows_again() -> None:
    """Pages after a reduced one are larger again, because only one may contain large objects."""
    pages = ListPages({}, size=500)
    pages.shrink(TOO_LARGE)
    pages.follow("token")
    assert pages.params == {"limit": "200", "continue": "token"}
    pages.follow("token")
    pages.follow("token")
    assert pages.params["limit"] == "500"


def test_two_huge_objects_do_not_make_a_list_too_long() -> None:
    """A user with two objects of the largest size does not prevent the list of 40,000 others."""
    pages, at, size, asked = ListPages({}, size=500), 0, 40_000, 0
    while at < size:
        end = at + int(pages.params["limit"])
        asked += 1
        if at <= 100 and end >= 102:
            pages.shrink(TOO_LARGE)
        else:
            at = end
            pages.follow("token")
    assert asked < 110


def test_reads_whole_list_after_token_expired() -> None:
    """Without pages, from the beginning."""
    pages = ListPages({"labelSelector": "a", "resourceVersion": "5"}, size=500)
    pages.follow("token")
    assert "resourceVersion" not in pages.params
    pages.restart(EXPIRED)
    assert pages.params == {"labelSelector": "a", "resourceVersion": "5"}


def test_expired_without_token_is_an_error() -> None:
    """A list that expires at its first page is not repeated here."""
    with pytest.raises(Expired):
        ListPages({}, size=500).restart(EXPIRED)


def test_whole_list_that_is_too_large_stays_expired() -> None:
    """If neither pages nor the whole can be read, the caller lists again."""
    pages = ListPages({}, size=500)
    pages.follow("token")
    pages.restart(EXPIRED)
    with pytest.raises(Expired):
        pages.shrink(TOO_LARGE)


def test_unpaged_list_that_is_too_large_is_paged() -> None:
    pages = ListPages({}, size=0)
    pages.shrink(TOO_LARGE)
    assert pages.params == {"limit": "100"}


def test_list_without_end_is_an_error() -> None:
    """A server with endless continue tokens is slowed down, then an error."""
    pages = ListPages({}, size=500)
    for _ in range(150):
        pages.follow("token")
    assert pages.pause == 0
    for _ in range(9849):
        pages.follow("token")
    assert pages.pause == 0.05
    with pytest.raises(ResponseTooLarge, match="more than 10,000 pages"):
        pages.follow("token")
