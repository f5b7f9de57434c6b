"""``virtual-node completion bash|zsh|fish``: prints a script that completes commands, flags and values.

The scripts run ``virtual-node __complete WORDS``, as kubectl's do, so they stay current after an update. The
output has cobra's format: a candidate per line, a tab, its description, and on the last line a directive,
which is a sum of bits. Bit 4 means no file names, and bit 2 means no space after the word. kubectl runs
``kubectl_complete-virtual_node`` with the same protocol.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from controller_runtime.apimachinery import readable
from controller_runtime.process import terminal
from controller_runtime.process.argparser import Parser
from virtual_node.commands.completion import engine, names, scripts
from virtual_node.config import program

_NO_SPACE, _NO_FILES = 2, 4
"""cobra's ShellCompDirectiveNoSpace and ShellCompDirectiveNoFileComp."""


def main(argv: Sequence[str]) -> int:
    """Print the completion script of a shell; return 0."""
    options = parser().parse_args(argv)
    terminal.block(scripts.SCRIPTS[options.shell].strip())
    return 0


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "completion",
        about="Print a script that completes commands, flags and values. The script runs the program for the "
        "candidates, so it stays valid after an update.",
        examples=tuple((f"In {shell}", f"completion {shell}") for shell in scripts.SCRIPTS),
        notes="bash and zsh: source <(virtual-node completion SHELL); fish: virtual-node completion fish | source. "
        "docs/cli.md says where to put that.",
    )
    own.add_argument("shell", choices=tuple(scripts.SCRIPTS), help="the shell that the script is for")
    return own


def answer(words: Sequence[str], *, commands: Mapping[str, str], parser_of: engine.ParserOf) -> int:
    """Print the candidates for the last word; return 0.

    Args:
        words: words after the program's name; the last one is being typed and may be empty.
        commands: every command with its purpose.
        parser_of: returns the parser of a command; None: it takes no flags.
    """
    found = engine.complete(
        words, commands=commands, parser_of=parser_of, default="" if program.is_plugin() else "run"
    )
    candidates, ended = found.candidates, True
    if found.question is not None:
        candidates, ended = names.ask(found.question)
    for one in candidates:
        words = [readable.one_line(text) for text in (one.value, one.description) if text]
        terminal.block("\t".join(words))
    going_on = bool(candidates) and all(one.value.endswith("/") for one in candidates)
    terminal.line(f":{(0 if found.files else _NO_FILES) | (_NO_SPACE if going_on else 0)}")
    if not ended:
        # At exit the interpreter would wait for threads of requests that nothing needs any more.
        sys.stdout.flush()
        os._exit(0)
    return 0
