"""Commands that take the daemon's flags beside their own: those say which clusters, as they do for the daemon."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from controller_runtime.process.argparser import Parser
from controller_runtime.process.flags import take_klog
from virtual_node.config import command_line, flags


def parse(
    parser_of: Callable[[], Parser], argv: Sequence[str]
) -> tuple[argparse.Namespace, command_line.Options]:
    """The command's own flags, and what the others mean to the daemon.

    Args:
        parser_of: makes a parser of the command's own flags.
        argv: the arguments.

    Raises:
        ConfigError: flags or configuration are wrong.
    """
    # The whole parser answers --help, completion and what is wrong; the daemon's flags are then read by their own.
    whole = parser_of()
    flags.add_flags(whole)
    whole.parse_args(take_klog(argv)[0])
    own, rest = parser_of().parse_known_args(argv)
    return own, command_line.parse(rest, prog=whole.prog)
