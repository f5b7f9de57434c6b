"""``python -m swarm.worker``: the sidecar, without the controller's command line."""

import sys

from swarm.worker.sidecar import main

sys.exit(main(program="python -m swarm.worker"))
