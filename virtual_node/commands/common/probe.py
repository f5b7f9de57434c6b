"""How a request was answered."""

from __future__ import annotations

from dataclasses import dataclass

PROXY_REFUSES = "address not allowed"
"""The API server's words when a node's address is loopback or link-local: it proxies to none of these."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How a request was answered."""

    code: int
    """HTTP status; 0: no answer."""
    text: str = ""
    """What was said, or why nothing was."""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return 200 <= self.code < 300
