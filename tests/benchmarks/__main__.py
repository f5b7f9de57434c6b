"""``python -m tests.benchmarks [run|render]``: measures, stores the raw results, and writes ``docs/evidence/benchmarks.md``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks import page, records
from tests.benchmarks.suite import BENCHMARKS

SEED = 42


def main(arguments: Sequence[str]) -> int:
    """Run a command; return 1 if a benchmark failed."""
    options = _parser().parse_args(arguments or ["run"])
    if options.command == "render":
        page.write()
        return 0
    failed = [name for name in options.only or [one.name for one in BENCHMARKS] if not _run(name, options)]
    if options.results == records.RESULTS:
        page.write()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, options: argparse.Namespace) -> bool:
    """Run one benchmark and store its result; report whether it succeeded."""
    [benchmark] = [one for one in BENCHMARKS if one.name == name]
    print(f"# {name}: about {benchmark.minutes} minutes on an idle machine without --quick", flush=True)
    recording = records.Recording(name, seed=options.seed, quick=options.quick)
    try:
        figures = asyncio.run(benchmark.load()(quick=options.quick, seed=options.seed))
    except Exception:  # noqa: BLE001 - reported below
        # The other benchmarks still run: together they take hours.
        traceback.print_exc()
        return False
    print(records.write(options.results, recording.finish(figures)))
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, then render")
    run.add_argument("--only", action="append", choices=[one.name for one in BENCHMARKS], metavar="NAME")
    run.add_argument("--quick", action="store_true", help="small sizes: shows that the benchmark works")
    run.add_argument("--seed", type=int, default=SEED)
    run.add_argument(
        "--results", type=Path, default=records.RESULTS, help="other directories are not rendered"
    )
    commands.add_parser("render", help="write docs/evidence/benchmarks.md and its plots from the raw results")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
