"""``virtual-node completion bash|zsh|fish``: prints a script that completes commands, flags and values.

The scripts run ``virtual-node __complete WORDS``, as kubectl's do, so they stay current after an update. The
output has cobra's format: a candidate per line, a tab, its description, and on the last line a directive,
which is a sum of bits. Bit 4 means no file names, and bit 2 means no space after the word. kubectl runs
``kubectl_complete-virtual_node`` with the same protocol.
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
    """Raised when a command starts to parse its flags.

    Derives from BaseException so that handlers do not catch it.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def main(argv: Sequence[str]) -> int:
    """Print the completion script of a shell; return 0."""
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
    """Print the candidates for the last word; return 0.

    Args:
        words: words after the program's name; the last one is being typed and may be empty.
        commands: every command with its purpose.
        run: runs a command line; used to get the parsers of commands.
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
        # At exit the interpreter would wait for threads of requests that nothing needs any more.
        sys.stdout.flush()
        os._exit(0)
    return 0


def parser_of(command: str, run: Callable[[Sequence[str]], int]) -> argparse.ArgumentParser | None:
    """Return the parser that a command parses its flags with; None: it takes no flags.

    Runs the command up to its call of the parser, so new commands are completed without further code.
    """

    def stop(parser: argparse.ArgumentParser, *_arguments: Any, **_options: Any) -> NoReturn:
        raise _Parsing(parser)

    original = argparse.ArgumentParser.parse_known_args
    argparse.ArgumentParser.parse_known_args = stop  # type: ignore[assignment]
    try:
        # Commands without flags print their output before the parser is called.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run([command])
    except _Parsing as parsing:
        return parsing.parser
    finally:
        argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
    return None
