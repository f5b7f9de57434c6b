"""The result of a probing request."""

from __future__ import annotations

from dataclasses import dataclass

PROXY_REFUSES = "address not allowed"
"""The API server's error when a node's address is loopback or link-local, to which it does not proxy."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probing request."""

    code: int
    """HTTP status; 0: no response."""
    text: str = ""
    """Body of the response, or the error."""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.code < 300
