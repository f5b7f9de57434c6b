"""A stream is cut into its lines, however the network cuts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.lines import LineSplitter


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=6),
    rest=st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 30), max_size=12),
)
def test_lines_may_be_cut_anywhere(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """However the network cuts the stream, the same lines come out, blank ones left out."""
    whole = b"".join(line + b"\n" for line in lines) + rest
    splitter, found = LineSplitter(), list[bytes]()
    for cut in cuts:
        found += splitter.feed(whole[:cut])
        whole = whole[cut:]
    found += splitter.feed(whole)
    assert found == [line for line in lines if line]
    assert splitter.has_rest == bool(rest)
