"""Parses flags of commands that also take the daemon's flags, which select the clusters."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import take_klog
from virtual_node.config import command_line, flags


def parse(
    parser_of: Callable[[], Parser], argv: Sequence[str]
) -> tuple[argparse.Namespace, command_line.Options]:
    """Return the command's own flags and the daemon's parsed options.

    Args:
        parser_of: creates a parser of the command's own flags.
        argv: the arguments.

    Raises:
        ConfigError: flags or configuration are wrong.
    """
    # The combined parser serves --help, completion and usage errors; then the daemon's parser reads its own
    # flags.
    whole = with_daemon_flags(parser_of())
    whole.parse_args(take_klog(argv)[0])
    own, rest = parser_of().parse_known_args(argv)
    return own, command_line.parse(rest, prog=whole.prog)


def with_daemon_flags(parser: Parser) -> Parser:
    """Add the daemon's flags to a parser, and return it."""
    flags.add_flags(parser)
    return parser
