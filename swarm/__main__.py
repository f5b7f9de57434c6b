"""``python -m swarm``: the same as the ``virtual-node-swarm`` command."""

from __future__ import annotations

import sys

from swarm.cli import main

sys.exit(main())
