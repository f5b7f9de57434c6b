"""What can happen in a simulation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Deed = Callable[[], str | Awaitable[str]]
"""Returns what it was; empty: nothing."""
