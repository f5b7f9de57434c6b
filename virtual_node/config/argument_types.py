"""Argument types that several commands use."""

from __future__ import annotations

import argparse
import re

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def label(text: str) -> str:
    """Return the text if it is a DNS-1123 label, such as the name of a namespace (for argparse's ``type``)."""
    if not LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        )
    return text
