"""How the program is called: ``virtual-node``, or ``kubectl virtual-node`` as a plugin of kubectl.

For ``kubectl virtual-node``, kubectl runs ``kubectl-virtual_node`` from the PATH, because ``-`` in file names
separates nested commands. Usage lines and errors contain the name that the user typed, so that they can be
copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

NAME = "virtual-node"
PLUGIN_FILE = "kubectl-virtual_node"
COMPLETION_FILE = "kubectl_complete-virtual_node"
WORKER = "__worker"
"""The command that runs a worker; only the parent of workers uses it."""


def is_plugin() -> bool:
    """Report whether kubectl runs this process, for a command or for its completion."""
    return bool(sys.argv) and Path(sys.argv[0]).stem in {PLUGIN_FILE, COMPLETION_FILE}


def name(command: str = "") -> str:
    """Return the program's name and a command, as the user types them, for usage lines and next steps."""
    return " ".join(part for part in (f"kubectl {NAME}" if is_plugin() else NAME, command) if part)
