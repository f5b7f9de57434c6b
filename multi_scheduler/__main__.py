"""``python -m multi_scheduler``."""

import sys

from multi_scheduler.cli import main

sys.exit(main())
