"""Tries many seeds: ``python -m tests.unit.multi_scheduler.simulation COUNT [FIRST [IGNORING]]``.

With IGNORING, such as 0.3, the lower schedulers ignore this share of the preferred nodes, as real ones may.
"""

from __future__ import annotations

import logging
import sys
import time

from tests.unit.multi_scheduler.simulation.story import simulate

logging.disable(logging.CRITICAL)
count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
ignoring = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
started, failed = time.monotonic(), 0
for seed in range(first, first + count):
    world = simulate(seed, ignoring=ignoring)
    if world.wrong:
        failed += 1
        sys.stdout.write("\n  ".join([f"seed {seed} (binds: {world.binds}):", *world.wrong]) + "\n")
sys.stdout.write(f"{count} seeds, {failed} wrong, {time.monotonic() - started:.0f} s\n")
sys.exit(bool(failed))
