"""``python -m swarm``: the same as the ``virtual-node-swarm`` command."""

import sys

from swarm.program import PROGRAM

sys.exit(PROGRAM())
