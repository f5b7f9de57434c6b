"""Run the suite, and write its table: ``python -m tests.company [NAME …]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from hack.sandbox.errors import SandboxError
from tests.company import suite, works_with
from tests.company.entries import ENTRIES
from tests.company.software import Software


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if all software works."""
    parser = argparse.ArgumentParser(prog="python -m tests.company", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENTRIES)}; none: all")
    parser.add_argument("--no-write", action="store_true", help="leave docs/reference/works-with.md as it is")
    parser.add_argument(
        "--only", choices=suite.SIDES, help="run only this side and print what it observes; write no row"
    )
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in ENTRIES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(ENTRIES)}")
    chosen = [ENTRIES[name] for name in options.names or ENTRIES]
    in_both = [software.name for software in chosen if software.both]
    if options.only == "virtual" and in_both:
        parser.error(
            f"--only virtual: the direct run installs what {', '.join(in_both)} needs; use no --only"
        )
    write = not options.no_write and options.only is None
    try:
        return asyncio.run(_run(chosen, write=write, only=options.only))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


async def _run(chosen: Sequence[Software], *, write: bool, only: str | None) -> int:
    failed = 0
    async for row in suite.run(chosen, lambda line: print(line, flush=True), only=only):
        print(f"{row.software}: {row.result}; difference: {row.difference}", flush=True)
        failed += row.result != "works"
        # A job that fails without a virtual node says nothing about virtual nodes.
        if write and suite.FAILS_DIRECTLY not in row.result:
            page = works_with.PAGE
            text = page.read_text(encoding="utf-8") if page.exists() else ""
            page.write_text(works_with.merged(text, [row]), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
