"""``virtual-node version``: prints the installed version."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from clusterset.model import names
from controller_runtime.process import terminal
from controller_runtime.process.program import version
from controller_runtime.process.terminal import Parser
from virtual_node.commands.common import output
from virtual_node.config import program


def main(argv: Sequence[str]) -> int:
    """Print the version; return 0."""
    options = parser().parse_args(argv)
    installed = version() or "unknown"
    if options.output == "text":
        terminal.line(installed)
    else:
        machine = f"{platform.system().lower()}/{platform.machine()}"
        output.data(
            {"version": installed, "python": platform.python_version(), "platform": machine}, options.output
        )
    return 0


def parser() -> Parser:
    """Return the command's parser."""
    own = Parser(
        program.name(),
        "version",
        about="Print the installed version.",
        examples=(("As JSON, with the version of Python and the platform", "version -o json"),),
        notes=f"The version of each virtual node is its label {names.LABEL_VERSION}: {program.name('status')} -o wide.",
    )
    output.add_flags(own, "text", *output.DATA)
    return own
