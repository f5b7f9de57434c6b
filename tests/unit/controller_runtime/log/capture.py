"""Captured log lines."""

from __future__ import annotations

import io
import json
from typing import Any, NoReturn


class Lines(io.BytesIO):
    """A stream that remembers what was logged."""

    def all(self) -> list[dict[str, Any]]:
        """Every line, decoded."""
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        """The last line, decoded."""
        return self.all()[-1]


def fail(error: Exception) -> NoReturn:
    """Raise it."""
    raise error
