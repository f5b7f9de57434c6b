"""The recipes of docs/operate/other-programs.md, for tests that use them as they are written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "other-programs.md"
_FENCE = re.compile(r"^```yaml\n# (?P<name>[\w.-]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def block(heading: str, name: str) -> Any:
    """Return the content of a file that a recipe shows."""
    section = _PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n### ")[0]
    return next(yaml.safe_load(found["body"]) for found in _FENCE.finditer(section) if found["name"] == name)
