"""``python -m descheduler``: the same as the ``virtual-node-descheduler`` command."""

from __future__ import annotations

import sys

from descheduler.cli import main

sys.exit(main())
