"""Argument types that several commands use."""

from __future__ import annotations

import argparse

from clusterset.model.namespace_map import DNS_LABEL


def label(text: str) -> str:
    """Return the text if it is a DNS-1123 label, such as the name of a namespace (for argparse's ``type``)."""
    if not DNS_LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        )
    return text
