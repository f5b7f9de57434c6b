"""A budget of output bytes and of work for the translation of one object.

A translation may repeat a value that a user wrote once: for each container, for each variable, for each term. The size
of the result is then a product of two numbers that a user chooses, so an object of 1 MB could become one of 1 GB. Each
place that repeats a value subtracts it from the budget *before* it builds the result. Work that is linear in the object's
own bytes is not counted, because API servers limit these bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

LARGEST_BODY = 3 * 1024 * 1024
"""Maximum bytes of a request that an API server reads. Source: ``MaxRequestBodyBytes`` in
``k8s.io/apiserver/pkg/server/config.go``."""
MOST_STEPS = 1_000_000
"""Maximum number of elements that a translation visits in addition to those of the object; about 0.2 s."""


class TooLargeError(ValueError):
    """The translation exceeds its budget; the text names the field or product, and says what to change."""


class TranslationBudget:
    """The bytes and steps that are left for the translation of one object."""

    __slots__ = ("_bytes", "_max_bytes", "_max_steps", "_steps")

    def __init__(self, *, size: int = LARGEST_BODY, steps: int = MOST_STEPS) -> None:
        """Set the limits of added bytes and of steps."""
        self._bytes = self._max_bytes = size
        self._steps = self._max_steps = steps

    def copy(self) -> TranslationBudget:
        """Return a budget with what is left of this one. Nothing that is subtracted from it is subtracted from this one."""
        left = TranslationBudget(size=self._max_bytes, steps=self._max_steps)
        left._bytes, left._steps = self._bytes, self._steps
        return left

    def add(self, size: int, what: str, advice: str) -> None:
        """Subtract bytes that are about to be added to the object.

        Args:
            size: bytes as JSON; an estimate suffices.
            what: the field or product that adds them.
            advice: what the user can change.

        Raises:
            TooLargeError: too few bytes are left.
        """
        self._bytes -= size
        if self._bytes < 0:
            raise TooLargeError(
                f"{what}: the copy would have more than {self._max_bytes:,} additional bytes, and API servers refuse "
                f"such objects; {advice}"
            )

    def work(self, steps: int, what: str, advice: str) -> None:
        """Subtract steps that are about to be made.

        Args:
            steps: number of elements to visit.
            what: the field or product that needs them.
            advice: what the user can change.

        Raises:
            TooLargeError: too few steps are left.
        """
        self._steps -= steps
        if self._steps < 0:
            raise TooLargeError(
                f"{what}: the translation would need more than {self._max_steps:,} steps; {advice}"
            )


def json_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(msgspec.json.encode(value))
