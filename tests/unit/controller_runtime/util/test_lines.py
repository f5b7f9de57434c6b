"""A stream is split into lines, independent of its chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.client.collection import LineSplitter, LineTooLong


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=6),
    rest=st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 30), max_size=12),
)
def test_chunks_may_end_anywhere(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """The lines are the same; blank ones are left out."""
    whole = b"".join(line + b"\n" for line in lines) + rest
    splitter, found = LineSplitter(1000), list[bytes]()
    for cut in cuts:
        found += splitter.feed(whole[:cut])
        whole = whole[cut:]
    found += splitter.feed(whole)
    assert found == [line for line in lines if line]
    assert splitter.has_rest == bool(rest)


@pytest.mark.parametrize(
    "chunks",
    [
        [b"x" * 11],
        [b"x" * 11 + b"\n"],
        [b"a\n" + b"x" * 11],
        [b"x" * 6, b"x" * 5],
        [b"x" * 6, b"x" * 5 + b"\n"],
        [b"x"] * 11,
        [b"a\nb\n" + b"x" * 11 + b"\nc\n"],
    ],
)
def test_too_long_line_is_an_error(chunks: list[bytes]) -> None:
    splitter = LineSplitter(10)
    with pytest.raises(LineTooLong):
        _ = [splitter.feed(chunk) for chunk in chunks]


def test_line_of_the_limit_is_valid() -> None:
    """And several lines together may exceed it."""
    splitter = LineSplitter(10)
    assert splitter.feed(b"x" * 10) == []
    assert splitter.feed(b"\n" + (b"y" * 10 + b"\n") * 3) == [b"x" * 10, *[b"y" * 10] * 3]
