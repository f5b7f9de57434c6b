"""``python -m descheduler``: the same as the ``virtual-node-descheduler`` command."""

import sys

from descheduler.program import PROGRAM

sys.exit(PROGRAM())
