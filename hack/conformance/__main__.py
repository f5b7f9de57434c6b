"""``python -m hack.conformance``."""

import sys

from hack.conformance.cli import main

sys.exit(main())
