"""The page of the tests on real clusters lists the modules with clusters of their own."""

from __future__ import annotations

import re
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "clusters"
_SHARED = {"fixtures.py", "pool.py"}


def test_every_module_with_clusters_of_its_own_has_a_reason():
    """They cost most of the time of ``make test``."""
    page = (_FOLDER / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w/]+\.py)` \| \d+ \| \S", page, re.MULTILINE))
    own = {
        file.relative_to(_FOLDER).as_posix()
        for file in _FOLDER.rglob("*.py")
        if re.search(r"\bSandbox\(", file.read_text(encoding="utf-8"))
    }
    assert listed == own - _SHARED
