"""Runs ``python -m virtual_node``, which is the ``virtual-node`` command."""

from __future__ import annotations

import sys

from virtual_node.cli import main

sys.exit(main())
