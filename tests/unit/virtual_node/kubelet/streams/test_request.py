"""Requests for streams, translated from the kubelet's parameters to the apiserver's."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import MultiDict

from virtual_node.kubelet.auth import websocket_bearer_token
from virtual_node.kubelet.base import Refusal
from virtual_node.kubelet.streams.dial import (
    answered_headers,
    attach_query,
    exec_query,
    forwarded_headers,
    is_upgrade,
    parse_query,
    port_forward_query,
    target_path,
)

PREFIX = "base64url.bearer.authorization.k8s.io."
WEBSOCKET = {"Upgrade": "websocket"}


def test_exec_is_translated_with_its_command_in_order() -> None:
    """input, output and error become stdin, stdout and stderr."""
    query = MultiDict(
        [
            ("command", "sh"),
            ("command", "-c"),
            ("input", "1"),
            ("command", "echo $1 & "),
            ("output", "1"),
            ("error", "1"),
        ]
    )
    assert exec_query(query, container="main") == [
        ("container", "main"),
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("command", "sh"),
        ("command", "-c"),
        ("command", "echo $1 & "),
    ]


def test_a_terminal_has_no_stderr() -> None:
    """With tty stderr is dropped, as in the kubelet."""
    query = MultiDict([("tty", "1"), ("output", "1"), ("error", "1")])
    assert attach_query(query, container="c") == [("container", "c"), ("stdout", "true"), ("tty", "true")]


@pytest.mark.parametrize("query", [{}, {"input": "0"}, {"tty": "1", "error": "1"}, {"stdin": "1"}])
def test_a_request_without_any_stream_is_refused(query: dict[str, str]) -> None:
    """At least one of the three is required."""
    with pytest.raises(Refusal, match="at least 1 of stdin, stdout, stderr") as refused:
        attach_query(MultiDict(query), container="c")
    assert refused.value.status == 400


def test_spdy_port_forward_names_no_ports() -> None:
    """SPDY and the tunnelled protocol name ports inside the stream."""
    assert port_forward_query(MultiDict(), {"Upgrade": "SPDY/3.1"}) == []
    tunnel = {**WEBSOCKET, "Sec-WebSocket-Protocol": "a, SPDY/3.1+portforward.k8s.io"}
    assert port_forward_query(MultiDict(), tunnel) == []


def test_websocket_port_forward_names_its_ports() -> None:
    """The kubelet's parameter is one list with commas, the apiserver's is called ports."""
    query = MultiDict([("port", "80,443"), ("port", "8080")])
    assert port_forward_query(query, WEBSOCKET) == [("ports", "80"), ("ports", "443"), ("ports", "8080")]


@pytest.mark.parametrize(
    "port", ["", "0", "65536", "http", "-1", "80,", "٣", "0000809999", "9" * 20, "9" * 5000]
)
def test_an_invalid_port_is_refused(port: str) -> None:
    """Only 1 to 65535 are valid."""
    with pytest.raises(Refusal, match="as a port") as refused:
        port_forward_query(MultiDict({"port": port}), WEBSOCKET)
    assert refused.value.status == 400


def test_websocket_port_forward_needs_a_port() -> None:
    with pytest.raises(Refusal, match='"port" is required'):
        port_forward_query(MultiDict(), WEBSOCKET)


@given(st.lists(st.tuples(st.text(), st.text(st.characters(exclude_categories=["Cs"])))))
def test_no_query_leaves_the_request_line(query: list[tuple[str, str]]) -> None:
    """For any command the target is one word of printable ASCII."""
    query = [(name.encode("utf-8", "replace").decode(), value) for name, value in query]
    target = target_path("/api/v1/pods", query)
    assert target.isascii()
    assert target.isprintable()
    assert " " not in target


@given(st.lists(st.binary(), min_size=1))
def test_a_command_keeps_its_bytes(words: list[bytes]) -> None:
    """File names may have any encoding."""
    raw = "&".join(["output=1", *(f"command={quote(word)}" for word in words)])
    target = target_path("/exec", exec_query(parse_query(raw), container="c"))
    sent = parse_qsl(target.partition("?")[2], keep_blank_values=True, errors="surrogateescape")
    assert [value.encode(errors="surrogateescape") for name, value in sent if name == "command"] == words


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["SPDY/3.1"], True),
        (["spdy/3.1 "], True),
        (["WebSocket"], True),
        ([], False),
        ([""], False),
        (["h2c"], False),
        (["SPDY/3.1, h2c"], False),
        (["SPDY/3.1", "websocket"], False),
    ],
)
def test_only_the_two_stream_protocols_are_upgraded(values: list[str], *, expected: bool) -> None:
    """Another upgrade could transport anything, with the lower credentials."""
    assert is_upgrade(values) is expected


def test_only_protocol_headers_are_passed_on() -> None:
    """In order, without credentials, impersonation and hop-by-hop headers."""
    headers = [
        ("Host", "node:10250"),
        ("Authorization", "Bearer upper"),
        ("Impersonate-User", "root"),
        ("impersonate-group", "system:masters"),
        ("X-Remote-User", "root"),
        ("X-Forwarded-For", "1.2.3.4"),
        ("Cookie", "a=b"),
        ("Proxy-Authorization", "Basic x"),
        ("Transfer-Encoding", "chunked"),
        ("Origin", "https://evil"),
        ("Connection", "Upgrade, Authorization"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v5.channel.k8s.io"),
        ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
        ("User-Agent", "kubectl"),
    ]
    assert forwarded_headers("POST", headers) == (
        ("Connection", "Upgrade"),
        ("Content-Length", "0"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v5.channel.k8s.io"),
        ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
        ("User-Agent", "kubectl"),
    )


def test_a_token_among_the_websocket_protocols_is_removed() -> None:
    """The lower cluster gets the protocols, never the upper cluster's token."""
    headers = [("Sec-WebSocket-Protocol", f"{PREFIX}dG9r, v4.channel.k8s.io"), ("Sec-WebSocket-Key", "k")]
    assert forwarded_headers("GET", headers) == (
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
        ("Sec-WebSocket-Key", "k"),
    )


def test_the_response_has_only_the_protocol() -> None:
    """Headers about the lower apiserver are removed."""
    headers = (
        ("Upgrade", "SPDY/3.1"),
        ("Audit-Id", "x"),
        ("X-Stream-Protocol-Version", "v4"),
        ("Date", "now"),
    )
    assert answered_headers(headers) == (
        ("Connection", "Upgrade"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v4"),
    )


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_bearer_token_is_read_from_the_protocols(token: str) -> None:
    """Browsers send the token base64url-encoded without padding, beside the real protocol."""
    encoded = urlsafe_b64encode(token.encode()).decode().rstrip("=")
    assert websocket_bearer_token([f"v4.channel.k8s.io,{PREFIX}{encoded}"]) == token
    assert websocket_bearer_token([PREFIX + encoded, "v4.channel.k8s.io"]) == token


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (f"{PREFIX}dG9r", "additional"),
        (f"x,{PREFIX}dG9r,{PREFIX}dG9r", "multiple"),
        (f"x,{PREFIX}dG8=", "encoding"),
        (f"x,{PREFIX}d", "encoding"),
        (f"x,{PREFIX}____", "encoding"),
    ],
)
def test_an_invalid_token_among_the_protocols_is_refused(value: str, message: str) -> None:
    """As the apiserver's websocket authenticator: alone, doubled, padded or not text is an error."""
    with pytest.raises(ValueError, match=message):
        websocket_bearer_token([value])


def test_protocols_without_a_token_are_no_credentials() -> None:
    assert websocket_bearer_token(["v4.channel.k8s.io"]) is None
    assert websocket_bearer_token([]) is None
