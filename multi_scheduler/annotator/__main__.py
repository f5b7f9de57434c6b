"""``python -m multi_scheduler.annotator``."""

import sys

from multi_scheduler.annotator.program import PROGRAM

sys.exit(PROGRAM())
