"""The parser of our commands, under the name that the user has typed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from controller_runtime import command_line
from virtual_node import program

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Parser(command_line.Parser):
    """A command's parser; usage and examples begin with ``virtual-node``, or with ``kubectl virtual-node``."""

    def __init__(
        self,
        command: str,
        *,
        about: str,
        examples: Sequence[tuple[str, str]] = (),
        exit_codes: str = "",
        notes: str = "",
    ) -> None:
        """Set up.

        Args:
            command: its name; empty: the daemon, without a name.
            about: what it is for.
            examples: what is wanted, and the command line for it, from the command's name on.
            exit_codes: ``0 …, 1 …``.
            notes: what else to say below the flags.
        """
        self.examples = examples
        super().__init__(
            program.name(command),
            about=about,
            examples=[(what, program.name(line)) for what, line in examples],
            exit_codes=exit_codes,
            notes=notes,
        )


def label(text: str) -> str:
    """The argparse type of a namespace, and of other names that are DNS-1123 labels."""
    if not _LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: lower-case letters, digits and dashes, at most 63"
        )
    return text
