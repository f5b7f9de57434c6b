"""How command lines are read: argparse, with kubectl's manners in what it says."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

USAGE_ERROR = 2
_WIDTH = 100
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)")


def guess(word: str, known: Iterable[str]) -> str:
    """``; did you mean status?`` where a word is close to one that there is, for the end of a message; else nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class Parser(argparse.ArgumentParser):
    """A program's parser: examples and exit codes in its help, a line and a guess for what it does not know."""

    def __init__(
        self,
        program: str,
        command: str = "",
        *,
        about: str,
        examples: Sequence[tuple[str, str]] = (),
        exit_codes: str = "",
        notes: str = "",
    ) -> None:
        """Set up.

        Args:
            program: what the user types to run it.
            command: of the program's commands; empty: it has none.
            about: what it is for.
            examples: what is wanted, and what to type for it behind the program's name.
            exit_codes: ``0 …, 1 …``.
            notes: what else to say below the flags.
        """
        self.examples = examples
        parts = [_wrapped(notes)]
        if examples:
            parts.append(
                "examples:\n" + "\n\n".join(f"  # {what}\n  {program} {line}" for what, line in examples)
            )
        if exit_codes:
            parts.append(_wrapped(f"exit codes: {exit_codes}"))
        super().__init__(
            prog=f"{program} {command}".rstrip(),
            description=_wrapped(about),
            epilog="\n\n".join(filter(None, parts)) or None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Flags may stand between other arguments, too, as in ``diagnose pod -n shop web``: kubectl takes them there."""
        self._set_usage()
        return self.parse_intermixed_args(args, namespace)

    def format_help(self) -> str:
        """Usage names what there must be; forty flags in brackets before the first word of help are no help."""
        self._set_usage()
        return super().format_help()

    def _set_usage(self) -> None:
        if self.usage is None:
            words = [self.prog, *map(_positional, self._get_positional_actions()), "[FLAGS]"]
            self.usage = " ".join(words).replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in a line, and where help is; the usage of forty flags would hide it."""
        self.exit(
            USAGE_ERROR,
            f"{self.prog}: {message}{self._guess(message)}\nSee '{self.prog} --help' for usage.\n",
        )

    def _guess(self, message: str) -> str:
        found = _UNKNOWN.fullmatch(message)
        for word in found[1].split() if found else ():
            known = [flag for flag in self._option_string_actions if flag.startswith("--")]
            if word.startswith("-") and (guessed := guess(word.partition("=")[0], known)):
                return guessed
        return ""


def _positional(action: argparse.Action) -> str:
    word = str(action.metavar or "|".join(map(str, action.choices or (action.dest,))))
    return {"?": f"[{word}]", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_on_hyphens=False)
