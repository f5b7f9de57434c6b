"""Definition of a fuzz target, and the bounds that every one must keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

MALFORMED = (ValueError, KeyError, TypeError, AttributeError)
"""Errors of malformed objects: controllers isolate them, and the extender's HTTP handler answers them with 400."""
SECONDS = 0.5
"""CPU time that one input of `mutation.LONGEST` bytes may take; such an input arrives in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function that parses bytes from outside."""

    name: str
    parse: Callable[[bytes], object]
    """Returns a result, or raises one of `errors`. Asserts the properties of the result."""
    seeds: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = (ValueError,)
    """Errors that the caller in the product handles, each with a message for users."""
    seconds: float = SECONDS


def check(target: Target, text: bytes) -> None:
    """Parse an input.

    Raises:
        Exception: Anything that is not an error of the target: a traceback in production.
        AssertionError: The result is wrong, the error has no message, or it took too long.
    """
    started = time.process_time()
    refusal: Exception | None = None
    try:
        target.parse(text)
    except target.errors as error:
        refusal = error
    assert refusal is None or str(refusal), f"{type(refusal).__name__} without a message"
    took = time.process_time() - started
    assert took < target.seconds, f"{len(text)} bytes took {took:.2f} s"
