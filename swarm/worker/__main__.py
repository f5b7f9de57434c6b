"""``python -m swarm.worker``: the sidecar, without the controller's command line."""

from __future__ import annotations

import sys

from swarm.worker.command import main

sys.exit(main())
