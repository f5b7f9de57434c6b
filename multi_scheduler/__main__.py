"""``python -m multi_scheduler``."""

import sys

from multi_scheduler.program import PROGRAM

sys.exit(PROGRAM())
