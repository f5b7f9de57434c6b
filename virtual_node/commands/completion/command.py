"""``virtual-node completion bash|zsh|fish``: a script that completes commands, flags and values.

The scripts ask the program itself (``virtual-node __complete WORDS``), as those of kubectl do, so they never go stale.
The answer is cobra's: a candidate a line, its description behind a tab, and last a directive, a sum of bits: 4 for "no
file names here", 2 for "no space behind it, the word goes on". kubectl asks ``kubectl_complete-virtual_node`` in the same
words.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from controller_runtime.process.argparser import Parser
from virtual_node.commands.completion import engine, names, scripts
from virtual_node.config import program

_NO_SPACE, _NO_FILES = 2, 4
"""cobra's ShellCompDirectiveNoSpace and ShellCompDirectiveNoFileComp."""


class _Parsing(BaseException):
    """A command has come to the point where it reads its flags; not an error, so nobody shall catch it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def main(argv: Sequence[str]) -> int:
    """Print the script for a shell."""
    parser = Parser(
        program.name(),
        "completion",
        about="A script that completes commands, flags and values. It asks the program, so it need not be made again "
        "after an update.",
        examples=tuple((f"In {shell}", f"completion {shell}") for shell in scripts.SCRIPTS),
        notes="bash and zsh: source <(virtual-node completion SHELL); fish: virtual-node completion fish | source. "
        "docs/cli.md says where to put that.",
    )
    parser.add_argument("shell", choices=tuple(scripts.SCRIPTS), help="which shell's")
    options = parser.parse_args(argv)
    print(scripts.SCRIPTS[options.shell].strip())  # noqa: T201 - the answer
    return 0


def answer(words: Sequence[str], *, commands: Mapping[str, str], run: Callable[[Sequence[str]], int]) -> int:
    """Print what may come next.

    Args:
        words: after the program's name; the last one is being typed and may be empty.
        commands: every command and what it is for.
        run: the command line, which is asked for its parsers.
    """
    found = engine.complete(
        words,
        commands=commands,
        parser_of=lambda command: parser_of(command, run),
        default="" if program.is_plugin() else "run",
    )
    candidates, ended = found.candidates, True
    if found.question is not None:
        candidates, ended = names.ask(found.question)
    for one in candidates:
        print(f"{one.value}\t{one.description}" if one.description else one.value)  # noqa: T201 - the answer
    going_on = bool(candidates) and all(one.value.endswith("/") for one in candidates)
    print(f":{(0 if found.files else _NO_FILES) | (_NO_SPACE if going_on else 0)}")  # noqa: T201 - the answer
    if not ended:
        # The interpreter would wait for what nobody waits for any more.
        sys.stdout.flush()
        os._exit(0)
    return 0


def parser_of(command: str, run: Callable[[Sequence[str]], int]) -> argparse.ArgumentParser | None:
    """The parser that a command reads its flags with; None: it reads none.

    The command is run up to where it parses. So a new command is completed without anybody doing anything for it.
    """

    def stop(parser: argparse.ArgumentParser, *_arguments: Any, **_options: Any) -> NoReturn:
        raise _Parsing(parser)

    original = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = stop  # type: ignore[assignment]
    try:
        # Commands without flags (version) have answered by then.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run([command])
    except _Parsing as parsing:
        return parsing.parser
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
    return None
