"""What can go wrong in the sandbox, in one clear line each."""

from __future__ import annotations


class SandboxError(Exception):
    """Something that the user can mend; the text says what and how."""
