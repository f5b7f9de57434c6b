"""``python -m swarm``: the same as the ``virtual-node-swarm`` command."""

import sys

from swarm.cli import main

sys.exit(main())
