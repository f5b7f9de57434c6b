"""``python -m swarm.worker``: the sidecar, without the controller's command line."""

from __future__ import annotations

import sys

from swarm.worker.sidecar.command import main

sys.exit(main())
