"""A browser gets changes at a bounded rate."""

from __future__ import annotations

import json

from virtual_node.web.server import _RATE, Changes, pause


def _read(message: bytes) -> tuple[dict[str, object], list[str]]:
    read = json.loads(message)
    return read["set"], read["drop"]


def test_sends_only_parts_that_differ() -> None:
    """New ones, changed ones, and the keys of removed ones."""
    changes = Changes()
    message, is_complete = changes.message({"a": b"1", "b": b"2"})
    assert (_read(message), is_complete) == (({"a": 1, "b": 2}, []), True)
    assert changes.message({"a": b"1", "b": b"2"}) == (b"", True)
    message, _ = changes.message({"a": b"3"})
    assert _read(message) == ({"a": 3}, ["b"])


def test_a_large_page_is_sent_in_order_and_in_its_latest_state() -> None:
    """A part that changes before its turn is sent once."""
    changes = Changes()
    parts = {str(number): b'"%s"' % (b"x" * 10_000) for number in range(10)}
    message, is_complete = changes.message(parts)
    first, _ = _read(message)
    assert (list(first), is_complete) == (["0", "1", "2"], False)
    parts["9"] = b'"new"'
    seen = dict(first)
    while not is_complete:
        message, is_complete = changes.message(parts)
        found, _ = _read(message)
        assert not set(found) & set(seen)
        seen |= found
    assert (len(seen), seen["9"]) == (10, "new")


def test_a_part_larger_than_a_message_is_sent_alone() -> None:
    """It does not block the stream."""
    changes = Changes()
    message, is_complete = changes.message({"a": b'"%s"' % (b"x" * 100_000), "b": b"1"})
    assert (list(_read(message)[0]), is_complete) == (["a"], False)
    message, is_complete = changes.message({"a": b'"%s"' % (b"x" * 100_000), "b": b"1"})
    assert (_read(message)[0], is_complete) == ({"b": 1}, True)


def test_a_browser_gets_at_most_50_kilobytes_a_second() -> None:
    """For any rate of changes: every message is followed by a sufficient pause."""
    changes, sent, seconds = Changes(), 0, 0.0
    for turn in range(100):
        parts = {str(number): b'"%d%s"' % (turn, b"x" * 3_000) for number in range(200)}
        message, is_complete = changes.message(parts)
        sent += len(message)
        seconds += pause(len(message), is_complete=is_complete, interval=1.0)
    assert sent / seconds <= 50_000
    assert _RATE <= 50_000
