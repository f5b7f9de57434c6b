"""``python -m hack.chart``: update the generated files of the chart; ``--check`` only reports stale ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hack.chart import dashboard, manifests, readme, rights, schema, swarm

WITHOUT_HELM: dict[Path, Callable[[], str]] = {
    rights.FILE: rights.render,
    swarm.FILE: swarm.render,
    schema.FILE: schema.render,
    dashboard.FILE: dashboard.render,
    readme.FILE: readme.render,
    readme.REFERENCE: readme.render_reference,
}
"""Generated file → its renderer, for files that are made without Helm."""
MADE: dict[Path, Callable[[], str]] = {**WITHOUT_HELM, **manifests.files()}
"""Generated file → its renderer, also for files that Helm renders."""


def stale(made: Mapping[Path, Callable[[], str]] = MADE) -> Iterator[Path]:
    """Return an iterator over files that differ from their renderer's result, compared one at a time as it advances."""
    return (
        file
        for file, render in made.items()
        if not file.exists() or file.read_text(encoding="utf-8") != render()
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files that differ; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.chart", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a file made without Helm is stale"
    )
    if parser.parse_args(argv).check:
        old = list(stale(WITHOUT_HELM))
        for file in old:
            print(f"{file} is stale: run make generate")
        return 1 if old else 0
    # Sequentially: helm reads the first files when it renders the last ones.
    for file in stale():
        file.write_text(MADE[file](), encoding="utf-8")
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
