"""Texts of cached objects in less memory: large ones as their differences from a similar text, equal short ones once.

The pods of one owner have nearly the same spec and status. As a difference, a pod's spec of 1 KiB takes 30 bytes. Packing takes
about four microseconds, and reading less than one. ``zlib`` does the work: the similar text, the model, is its dictionary.
"""

from __future__ import annotations

import functools
import zlib
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

_SMALLEST, _LARGEST = 256, 32 * 1024
"""Bytes of a text that is packed. The compressor finds repetitions within 32 KiB."""
_MOST = 1024
"""Models that are kept for later texts."""
_SHORT = 256
"""Characters of a text that objects share."""
_MOST_SHARED = 8192
"""Texts that are remembered for that."""
_MOST_READ = 256
"""Texts that were read last and are kept unpacked."""
_LEVEL, _MEMORY = 3, 4
"""How texts are compressed: measured to be the fastest for pods."""
_LOOK_AHEAD = 262
"""Bytes of its window that the compressor does not use for the model."""


class Packed(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A text as its difference from another one, the model."""

    model: bytes
    difference: bytes
    size: int
    """Bytes of the text. Its memory is counted as that, because nothing else may refer to the model any more."""


Text = bytes | Packed


def plain(text: Text) -> bytes:
    """Return a text as bytes."""
    return _unpacked(text) if isinstance(text, Packed) else text


def length(text: Text) -> int:
    """Return the length of a text in bytes."""
    return text.size if isinstance(text, Packed) else len(text)


def are_equal(text: Text | None, other: Text | None) -> bool:
    """Report whether two texts are equal; None only equals None."""
    if text is None or other is None:
        return text is other
    if isinstance(text, Packed) and isinstance(other, Packed) and text.model is other.model:
        return text.difference == other.difference
    return length(text) == length(other) and plain(text) == plain(other)


class Shared(Generic[T]):
    """The last short values that were read, so that objects with equal values have the same value in memory."""

    def __init__(self) -> None:
        """Begin without values."""
        self._values: dict[str | bytes, T] = {}

    def get(self, text: str | bytes, value: T) -> T:
        """Return the value that another object has for this text; ``value`` if no object has."""
        known = self._values.get(text)
        if known is None and len(text) <= _SHORT:
            if len(self._values) >= _MOST_SHARED:
                self._values.clear()
            self._values[text] = value
        return value if known is None else known


class Models:
    """The texts with which later ones are compared; for one cache."""

    def __init__(self) -> None:
        """Begin without models."""
        self._models: dict[tuple[str, ...], bytes] = {}

    def pack(self, kind: tuple[str, ...], text: Text | None, before: Text | None = None) -> Text | None:
        """Return a text as its difference from a similar one, or unchanged if there is none.

        Args:
            kind: of the text. Texts of other lengths are another kind.
            text: to be packed; None is returned.
            before: the text that it replaces, which has a model for it; None, or the text itself: there is none.
        """
        if text is None or isinstance(text, Packed) or not _SMALLEST <= len(text) <= _LARGEST:
            return text
        if before is not text and are_equal(text, before):
            return before
        key = (*kind, str(len(text).bit_length()))
        for model in dict.fromkeys((_model(before), self._models.get(key))):
            if model is not None and len(difference := _difference(text, model)) <= len(text) // 2:
                return Packed(model, difference, len(text))
        if len(self._models) >= _MOST:
            self._models.clear()
        self._models[key] = text
        return text


@functools.lru_cache(maxsize=_MOST_READ)
def _unpacked(text: Packed) -> bytes:
    """Return a packed text. Cached, because one reconciliation reads the texts of an object many times."""
    return zlib.decompressobj(_window(text.model), zdict=text.model).decompress(text.difference)


def _difference(text: bytes, model: bytes) -> bytes:
    window, strategy = _window(model), zlib.Z_DEFAULT_STRATEGY
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, window, _MEMORY, strategy, model)
    return compressor.compress(text) + compressor.flush()


def _window(model: bytes) -> int:
    """Return the smallest window that holds a model, as the negative exponent of a format without header; it is faster."""
    return -min(15, (len(model) + _LOOK_AHEAD).bit_length())


def _model(text: Text | None) -> bytes | None:
    return text.model if isinstance(text, Packed) else None
