"""``python -m webhook``: the same as the ``virtual-node-webhook`` command."""

import sys

from webhook.cli import main

sys.exit(main())
