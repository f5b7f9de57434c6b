"""``python -m multi_scheduler.annotator``."""

import sys

from multi_scheduler.annotator.cli import main

sys.exit(main())
