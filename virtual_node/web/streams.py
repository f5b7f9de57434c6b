"""Selects the changed parts of the page to send to a watching browser, at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

_MESSAGE = 32 * 1024
"""Bytes of a message beyond which no further part is added."""
_RATE = 48 * 1024
"""Bytes per second for one browser."""


class Changes:
    """Remembers which parts one browser has.

    Parts are JSON by key and keep their order. What the page shows first is sent first, so that a large page
    appears from top to bottom. A part that changes again before it is sent is sent once, in its latest state.
    """

    def __init__(self) -> None:
        self._sent: dict[str, bytes] = {}

    def message(self, parts: Mapping[str, bytes]) -> tuple[bytes, bool]:
        """Return the next message, and whether the browser is up to date after it; an empty message: no change.

        Args:
            parts: the current page.

        Returns:
            JSON with ``set``, the new or changed parts, ``drop``, the keys of removed parts, and ``now``, the
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
    """Return the seconds until the next message, so that a browser receives no more than ``_RATE``.

    Args:
        sent: bytes of the message that was sent.
        is_complete: whether the browser is up to date.
        interval: seconds between two checks for a browser that is up to date.
    """
    return max(interval if is_complete else 0.0, sent / _RATE)


def _quoted(key: str) -> bytes:
    return msgspec.json.encode(key)
