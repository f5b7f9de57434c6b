"""Raw results as JSON lines: one run per line, in a fixed order, so that a repeated evaluation changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path("hack/placement/results")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file; an empty list if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add(path: Path, record: Mapping[str, Any]) -> None:
    """Append a run to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(_line(record))


def tidy(path: Path) -> None:
    """Sort the runs of a file."""
    path.write_text("".join(sorted(_line(record) for record in read(path))), encoding="utf-8")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":")) + "\n"
