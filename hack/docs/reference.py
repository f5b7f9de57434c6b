"""``python -m hack.docs.reference``: write the generated pages except values.md; ``--check`` only lists stale ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hack.docs import configuration, flags, rights
from hack.docs.markdown import COMMAND

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "flags.md": flags.render,
    "configuration.md": configuration.render,
    "rights.md": rights.render,
}
"""Generated page → its renderer."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages. With ``--check`` only list those that differ from the code, and return 1 if there are any."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="The generated pages of docs/reference.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 when a page is stale"
    )
    options = parser.parse_args(argv)
    fresh = {name: render() for name, render in PAGES.items()}
    old = stale(fresh)
    for name in old:
        if options.check:
            print(f"docs/reference/{name} is stale: run {COMMAND}")
        else:
            (DIRECTORY / name).write_text(fresh[name], encoding="utf-8")
            print(f"docs/reference/{name} written")
    return 1 if options.check and old else 0


def stale(fresh: dict[str, str]) -> list[str]:
    """Return the names of pages whose files differ from the rendered text."""
    return [
        name
        for name, text in fresh.items()
        if not (DIRECTORY / name).is_file() or (DIRECTORY / name).read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    sys.exit(main())
