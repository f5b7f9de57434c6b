"""The command line of a program: parses arguments with argparse, and prints help, errors and output as kubectl does.

Only this module and the tables print, so that no text of a cluster controls the terminal.
"""

from __future__ import annotations

import argparse
import codecs
import io
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from controller_runtime.apimachinery import readable
from controller_runtime.apimachinery.readable import guess
from controller_runtime.process.flags import with_switches

USAGE_ERROR = 2
_WIDTH = 100
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)")
_REQUIRED = "the following arguments are required"
_CHOICE = re.compile(r"argument (.*): invalid choice: (.*) \(choose from (.*)\)")


_ASCII = {"✓": "+", "✗": "x", "•": "*", "→": "->", "…": "...", "≤": "<=", "×": "x", "–": "-", "—": "-"}
"""What is printed for a character that the locale lacks. Marks of good and bad lines stay different."""
_REPLACE = "virtual-node.replace"


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Return the text for characters that cannot be encoded, as an error handler of codecs; ``?`` for unknown ones."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(found, "?") for found in error.object[error.start : error.end]), error.end


codecs.register_error(_REPLACE, _replaced)


def replace_unencodable(stream: TextIO) -> None:
    """Let a stream replace the characters that its encoding lacks, instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_REPLACE)


def line(text: str, *, is_remark: bool = False) -> None:
    """Print a text in one line to standard output, or to standard error if it is a remark."""
    block(readable.one_line(text), is_remark=is_remark)


def block(text: str, *, is_remark: bool = False) -> None:
    """Print a text that may have several lines and columns."""
    print(readable.lines(text), file=sys.stderr if is_remark else sys.stdout, flush=True)


def complain(program: str, error: Exception) -> int:
    """Print an error in one line on standard error, without a traceback; return the exit code."""
    line(f"{program}: {error}", is_remark=True)
    return USAGE_ERROR


class Parser(argparse.ArgumentParser):
    """A program's parser: help with examples and exit codes, one-line errors with suggestions."""

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
        """Create a parser.

        Args:
            program: the program's name.
            command: the program's command that this parser is for; empty: the program has no commands.
            about: the description.
            examples: pairs of a purpose and the arguments for it.
            exit_codes: ``0 …, 1 …``.
            notes: more help below the flags.

        Attributes:
            also_known: flags of the same command line that other code parses, for suggestions.
        """
        self.examples = examples
        self.also_known: Sequence[str] = ()
        self._given: Sequence[str] = ()
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
        """Return the parsed arguments. As in kubectl, flags may stand anywhere: ``diagnose pod -n shop web``."""
        self._set_usage()
        self._given = list(sys.argv[1:] if args is None else args)
        return self.parse_intermixed_args(self._given, namespace)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the parsed arguments, and those that are unknown. Booleans are written as in Go."""
        try:
            given = with_switches(sys.argv[1:] if args is None else args, self._option_string_actions)
        except argparse.ArgumentTypeError as error:
            self.error(str(error))
        return super().parse_known_args(given, namespace)

    def parse_given(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments; a flag that is not given is None instead of its default."""
        # argparse sets a default only if the attribute is missing.
        flags = [action.dest for action in self._actions if action.option_strings]
        given: argparse.Namespace = self.parse_args(args, argparse.Namespace(**dict.fromkeys(flags)))
        return given

    def flag_names(self) -> list[str]:
        """Return every long flag, such as ``--kubeconfig``."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def format_help(self) -> str:
        """Return the help; its usage line omits the flags, because forty of them would hide the arguments."""
        self._set_usage()
        return super().format_help()

    def _set_usage(self) -> None:
        if self.usage is None:
            words = [self.prog, *map(_positional, self._get_positional_actions()), "[FLAGS]"]
            self.usage = " ".join(words).replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        """Exit with a one-line error that points to ``--help``; the long usage would hide the error."""
        text = self._missing(message) or _chosen(message) or self._unknown(message)
        text = text.removeprefix("argument ")
        end = "" if text.endswith("?") else f"; see '{self.prog} --help'"
        self.exit(USAGE_ERROR, f"{self.prog}: {text}{end}\n")

    def _unknown(self, message: str) -> str:
        """Return an error with the unknown arguments and a suggestion; other messages unchanged."""
        found = _UNKNOWN.fullmatch(message)
        if found is None:
            return message
        words = found[1].split()
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"unexpected argument{'s'[: len(words) > 1]} {' '.join(words)}"
        known = [*self.flag_names(), *self.also_known]
        close = filter(None, (guess(flag, known) for flag in flags))
        return f"unknown flag{'s'[: len(flags) > 1]} {', '.join(flags)}{next(close, '')}"

    def _missing(self, message: str) -> str:
        """Return an error for missing arguments, positional ones first; empty for other errors."""
        if not message.startswith(_REQUIRED):
            return ""
        words = [word for word in self._given if not word.startswith("-")]
        for action in self._get_positional_actions():
            if action.choices and action.required and not any(word in action.choices for word in words):
                choices = [str(choice) for choice in action.choices]
                close = next(filter(None, (guess(word, choices) for word in words)), "")
                return f"missing argument, one of {', '.join(choices)}{close}"
        return message


def _chosen(message: str) -> str:
    """Return our error for an invalid choice, with a suggestion; empty for other errors of argparse."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return ""
    choices = [choice.strip("'") for choice in found[3].split(", ")]
    word = found[2].strip("'\"")
    return f"{found[1]}: {word!r} is not one of {', '.join(choices)}{guess(word, choices)}"


def _positional(action: argparse.Action) -> str:
    word = str(action.metavar or "|".join(map(str, action.choices or (action.dest,))))
    return {"?": f"[{word}]", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_on_hyphens=False)
