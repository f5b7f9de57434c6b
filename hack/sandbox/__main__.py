"""Entry point of ``python -m hack.sandbox``."""

from __future__ import annotations

import sys

from hack.sandbox.commands.cli import main

sys.exit(main())
