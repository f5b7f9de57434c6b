"""``python -m webhook``: the same as the ``virtual-node-webhook`` command."""

import sys

from webhook.program import PROGRAM

sys.exit(PROGRAM())
