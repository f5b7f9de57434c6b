"""Readable errors of connections."""

from __future__ import annotations

import pytest

from virtual_node.examine.connections import plain


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
