"""What we are called: ``virtual-node``, or ``kubectl virtual-node`` as a plugin of kubectl.

kubectl runs ``kubectl-virtual_node`` from the PATH for ``kubectl virtual-node`` (it takes ``-`` for the separator of
nested commands). Usage lines and errors must name what the user has typed, or they cannot be copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

PLUGIN_FILE = "kubectl-virtual_node"
COMPLETION_FILE = "kubectl_complete-virtual_node"


def is_plugin() -> bool:
    """Whether kubectl runs us, for a command or for its completion."""
    return bool(sys.argv) and Path(sys.argv[0]).stem in {PLUGIN_FILE, COMPLETION_FILE}


def name(command: str = "") -> str:
    """How the user calls us, or one of our commands; for usage lines, errors and next steps."""
    return " ".join(
        part for part in ("kubectl virtual-node" if is_plugin() else "virtual-node", command) if part
    )
