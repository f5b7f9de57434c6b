"""``python -m virtual_node``: the same as the ``virtual-node`` command."""

from __future__ import annotations

import sys

from virtual_node.cli import main

sys.exit(main())
