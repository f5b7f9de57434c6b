"""Prints a command's output. Only this module and the tables print, so that no text of a cluster controls the terminal."""

from __future__ import annotations

import sys

from controller_runtime.apimachinery import readable


def line(text: str, *, is_remark: bool = False) -> None:
    """Print a text in one line to standard output, or to standard error if it is a remark."""
    block(readable.one_line(text), is_remark=is_remark)


def block(text: str, *, is_remark: bool = False) -> None:
    """Print a text that may have several lines and columns."""
    print(readable.lines(text), file=sys.stderr if is_remark else sys.stdout, flush=True)
