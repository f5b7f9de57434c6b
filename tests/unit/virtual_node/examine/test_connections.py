"""Readable errors of connections."""

from __future__ import annotations

import pytest

from virtual_node.examine.connections import plain, proxy_step


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "https://h:1: Cannot connect to host h:1 ssl:default [Connect call failed ('127.0.0.1', 1)]",
            "https://h:1: nothing listens there",
        ),
        ("Cannot connect to host h:1 [Name or service not known]", "its name cannot be resolved"),
        ("https://h:1: no answer in time", "https://h:1: there is no way there, or no answer in time"),
        (
            "https://h:1: certificate verify failed: expired",
            "https://h:1: certificate verify failed: expired",
        ),
        ("plugin: exit code 1", "plugin: exit code 1"),
        (
            "https://h:1: the proxy http://p:3128: cannot connect: connection refused",
            "https://h:1: the proxy http://p:3128: cannot connect: connection refused",
        ),
        ("", ""),
    ],
)
def test_an_unreachable_server_has_a_readable_error(text: str, said: str) -> None:
    """Python's text for a refused connection is replaced; other errors have their cause and stay."""
    assert plain(text) == said


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (
            "the proxy https://p:8090 answered 500 Internal Server Error: currently no tunnels available",
            "no agent of its tunnel",
        ),
        (
            "Lower cluster a does not answer: the proxy socks5://p:1080 answered 2 (not allowed)",
            "is the proxy of proxy-url running",
        ),
        (
            "the proxy https://p:8090: [SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired",
            "renew the certificate of the proxy",
        ),
        ("https://h:1: nothing listens there", ""),
        ("", ""),
    ],
)
def test_an_error_of_a_proxy_has_its_own_next_step(text: str, step: str) -> None:
    """It is not the API server that must be brought back."""
    said = proxy_step(text)
    assert step in said
    assert bool(said) == bool(step)
