"""``python -m descheduler``: the same as the ``virtual-node-descheduler`` command."""

import sys

from descheduler.cli import main

sys.exit(main())
