"""``python -m hack.chart``: bring what is made from the code up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from hack.chart import dashboard, manifests, readme, rights, schema, swarm

MADE: dict[Path, Callable[[], str]] = {
    rights.FILE: rights.render,
    swarm.FILE: swarm.render,
    schema.FILE: schema.render,
    dashboard.FILE: dashboard.render,
    readme.FILE: readme.render,
    readme.REFERENCE: readme.render_reference,
    **manifests.files(),
}
"""File → what makes its text."""


def stale() -> Iterator[Path]:
    """The files that are not what the code and values.yaml say now; each is looked at when it is asked for."""
    return (
        file
        for file, render in MADE.items()
        if not file.exists() or file.read_text(encoding="utf-8") != render()
    )


def main() -> int:
    """Write the files that differ; returns the exit code."""
    # One after the other: helm reads the first ones when it renders the last.
    for file in stale():
        file.write_text(MADE[file](), encoding="utf-8")
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
