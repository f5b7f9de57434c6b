"""Validators of JSON Schema, imported when a test needs them."""

from __future__ import annotations

import functools
import sys
from typing import Any
from unittest import mock


@functools.cache
def validators() -> Any:
    """Return the module ``jsonschema``, without the checkers of formats.

    No test uses them, and at import one of them parses a grammar for a second.
    """
    with mock.patch.dict(sys.modules, {"rfc3987": None, "rfc3987_syntax": None}):
        import jsonschema  # noqa: PLC0415 - see above

    return jsonschema
