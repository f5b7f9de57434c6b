"""Every path in ARCHITECTURE.md, CONTRIBUTING.md and the decision records exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
_WORD = re.compile(r"[^\s`|()\[\]]+")
_TOP = {path.name for path in ROOT.iterdir() if path.is_dir()} - {".venv"}
_ROOT_FILE = re.compile(r"Makefile|Dockerfile|[A-Z]+\.md|\w+\.toml")


def _paths(text: str) -> Iterator[str]:
    """Return words that are paths from the root, without those with ``<placeholders>``."""
    for word in _WORD.findall(text):
        path = word.partition("::")[0].strip(".,;:").removeprefix("TEST=")
        if "<" not in path and (
            ("/" in path and path.partition("/")[0] in _TOP) or _ROOT_FILE.fullmatch(path)
        ):
            yield path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    bases = (ROOT, page.parent)
    missing = [
        path
        for path in _paths(page.read_text(encoding="utf-8"))
        if not any([*base.glob(path)] for base in bases)
    ]
    assert missing == []


def test_finds_paths():
    """The check above sees files, folders, patterns and test ids."""
    text = "`tests/waiting.py`, (`hack/chart/`): tests/unit/x.py::test_a `agents/<name>.py` Makefile."
    assert list(_paths(text)) == ["tests/waiting.py", "hack/chart/", "tests/unit/x.py", "Makefile"]
    assert len(list(_paths(PAGES[0].read_text(encoding="utf-8")))) > 50
