"""``python -m hack.docs.links``: list the broken links of all pages, and the pages that other files name and do not exist.

A link is broken if its file does not exist, or if the linked page has no heading for its anchor. Addresses of other
servers are not opened.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hack.size import PRODUCT

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r'(?:\]\(|\b(?:src|srcset|href)=")(?P<target>[^)"#\s]*)(?P<anchor>#[^)"\s]*)?[)"]')
_OTHER_SERVER = re.compile(r"[a-z]+:")
_NAMED = re.compile(
    r"(?<![\w/.-])(?:https://github\.com/virtual-node/virtual-node/blob/main/)?(docs/[\w/-]+\.md)(#[\w-]+)?"
)
"""A page in a text that is not Markdown: in a message, a comment, or the address of a runbook."""
_NAMING = ("charts", "hack", *PRODUCT)
_SUFFIXES = frozenset({".json", ".py", ".tpl", ".txt", ".yaml"})


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages of the repository, in a fixed order."""
    folders = [root / name for name in ("charts", "docs", "hack", "tests")]
    return [
        *sorted(root.glob("*.md")),
        *(page for folder in folders for page in sorted(folder.rglob("*.md"))),
    ]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings as GitHub makes them: the second one of a name gets a number."""
    there: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        slug = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        there[slug] = there.get(slug, 0) + 1
    return frozenset(
        f"#{slug}-{number}" if number else f"#{slug}"
        for slug, count in there.items()
        for number in range(count)
    )


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the relative links of a page outside of code: file and anchor. Either can be empty."""
    for found in _LINK.finditer(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not _OTHER_SERVER.match(found["target"]):
            yield found["target"], found["anchor"] or ""


def broken(page: Path) -> list[str]:
    """Return the broken links of a page."""
    return [
        target + anchor
        for target, anchor in links(page)
        if not _leads(page.parent / target if target else page, anchor)
    ]


def missing(file: Path) -> list[str]:
    """Return the pages of the documentation that a file names and that do not exist, with their anchors."""
    return [
        target + anchor
        for target, anchor in _NAMED.findall(file.read_text(encoding="utf-8"))
        if not _leads(ROOT / target, anchor)
    ]


def _leads(path: Path, anchor: str) -> bool:
    return path.exists() and (
        not anchor or path.suffix != ".md" or anchor in anchors(Path(os.path.normpath(path)))
    )


def main() -> int:
    """Print each broken link with its file; return 1 if there are any."""
    naming = (
        file
        for folder in _NAMING
        for file in sorted((ROOT / folder).rglob("*"))
        if file.suffix in _SUFFIXES and file.is_file()
    )
    found = [(page, link) for page in pages() for link in broken(page)]
    found += [(file, link) for file in naming for link in missing(file)]
    for file, link in found:
        print(f"{file.relative_to(ROOT)}: {link} does not exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
