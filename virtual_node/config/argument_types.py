"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def label(text: str) -> str:
    """The argparse type of a namespace, and of other names that are DNS-1123 labels."""
    if not _LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        )
    return text
