"""Encoding and parsing of HTTP/1 heads, without header injection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.client.dialing import RequestHead, ResponseHead


def test_a_request_head_keeps_order_and_repeated_names() -> None:
    """The protocols of a SPDY client are several headers of one name, best first."""
    head = RequestHead("POST", "/exec?x=1", (("A", "1"), ("B", "2"), ("A", "3")))
    assert head.encode() == b"POST /exec?x=1 HTTP/1.1\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        RequestHead("GET /evil", "/", ()),
        RequestHead("GET", "/a b", ()),
        RequestHead("GET", "/a\r\nX: 1", ()),
        RequestHead("GET", "", ()),
        RequestHead("GET", "/ü", ()),
        RequestHead("GET", "/", (("A\r\nB", "1"),)),
        RequestHead("GET", "/", (("A", "1\r\nB: 2"),)),
        RequestHead("GET", "/", (("A", "1\nB: 2"),)),
        RequestHead("GET", "/", (("A", "1\x00"),)),
        RequestHead("GET", "/", (("", "1"),)),
    ],
)
def test_line_breaks_are_refused(head: RequestHead) -> None:
    """ValueError before a byte is sent."""
    with pytest.raises(ValueError, match=r"method|target|header"):
        head.encode()


@given(st.text())
def test_no_header_value_makes_a_second_line(value: str) -> None:
    """Any text is refused or stays in its line."""
    try:
        raw = RequestHead("GET", "/", (("X", value),)).encode()
    except ValueError:
        return
    assert raw.count(b"\r\n") == 3
    assert raw.count(b"\n") == 3


def test_a_response_head_is_parsed() -> None:
    """Status, reason and headers, found in any case."""
    head = ResponseHead.parse(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade:  SPDY/3.1 \r\nEmpty:")
    assert (head.status, head.reason) == (101, "Switching Protocols")
    assert head.get("upgrade") == "SPDY/3.1"
    assert head.get("empty", "x") == ""
    assert head.get("missing", "x") == "x"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 001 OK",
        b"SSH-2.0-OpenSSH",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\n folded: line",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d",
    ],
)
def test_invalid_response_heads_are_refused(raw: bytes) -> None:
    """ValueError."""
    with pytest.raises(ValueError, match="not an HTTP"):
        ResponseHead.parse(raw)


@given(st.binary())
def test_any_bytes_raise_only_value_error(raw: bytes) -> None:
    try:
        head = ResponseHead.parse(raw)
    except ValueError:
        return
    assert isinstance(head, ResponseHead)
