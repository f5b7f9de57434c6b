"""What to send to a browser that watches: the parts of the page that differ from what it has, at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

_MESSAGE = 32 * 1024
"""Bytes of a message after which no further part is added to it."""
_RATE = 48 * 1024
"""Bytes a second for one browser."""


class Changes:
    """Remembers what one browser has.

    Parts are JSON by key. Their order is kept: what the page shows first is sent first, so that a large page is there
    from the top down, and a part that changes again before its turn is sent once, in its latest state.
    """

    def __init__(self) -> None:
        self._sent: dict[str, bytes] = {}

    def message(self, parts: Mapping[str, bytes]) -> tuple[bytes, bool]:
        """Return the next message, and whether the browser has everything then. Empty: it has everything.

        Args:
            parts: the page as it is now.

        Returns:
            JSON: ``set``, the parts that are new or different; ``drop``, the keys of those that are gone; ``now``, the
            server's clock in milliseconds.
        """
        chosen: list[bytes] = []
        size, is_complete = 0, True
        for key, body in parts.items():
            if self._sent.get(key) == body:
                continue
            if size and size + len(body) > _MESSAGE:
                is_complete = False
                break
            chosen.append(_quoted(key) + b":" + body)
            size += len(chosen[-1])
            self._sent[key] = body
        dropped = [key for key in self._sent if key not in parts]
        for key in dropped:
            del self._sent[key]
        if not chosen and not dropped:
            return b"", True
        body = b"".join(
            (
                b'{"now":', str(int(time.time() * 1000)).encode(),
                b',"set":{', b",".join(chosen),
                b'},"drop":[', b",".join(map(_quoted, dropped)), b"]}",
            )
        )  # fmt: skip
        return body, is_complete


def pause(sent: int, *, is_complete: bool, interval: float) -> float:
    """Return the seconds until the next message, so that a browser gets no more than ``_RATE``.

    Args:
        sent: bytes of the message that was sent.
        is_complete: whether the browser has everything.
        interval: seconds between two looks for a browser that has everything.
    """
    return max(interval if is_complete else 0.0, sent / _RATE)


def _quoted(key: str) -> bytes:
    return msgspec.json.encode(key)
