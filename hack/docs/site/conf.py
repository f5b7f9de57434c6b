"""Settings of Sphinx for the documentation site (``make docs``).

The pages are CommonMark, as GitHub shows them, and are not changed for the site. Navigation comes from the index
(``docs/README.md``): each of its headings is a group, and each link to a page an entry. Links to files outside of
``docs/`` lead to the repository. The site has its fonts, styles and search index with it, so a reader needs no network.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from hack.docs import links  # noqa: E402 - the path is set above

project = "virtual-node"
root_doc = "README"
extensions = ["myst_parser"]
myst_heading_anchors = 6
suppress_warnings = ["misc.highlighting_failure"]  # examples have placeholders
html_theme = "furo"
html_title = project
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {"source_repository": "", "footer_icons": []}
REPOSITORY = "https://github.com/virtual-node/virtual-node"
_GROUP = re.compile(r"^## (.+)$|^- \[(?P<title>[^]]+)\]\((?P<page>[^)#:]+)\.md\)", re.MULTILINE)
_INLINE = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def setup(app: Any) -> None:
    """Register the two steps that the pages need."""
    app.connect("source-read", _prepare)
    app.connect("build-finished", _complete)


def _prepare(app: Any, name: str, source: list[str]) -> None:
    """Let links that leave the folder lead to the repository, and give the index its navigation."""
    folder = (links.DOCS / name).parent
    # A fence is an odd part: code has no links.
    parts = [
        part if number % 2 else _outward(part, folder) for number, part in enumerate(_FENCE.split(source[0]))
    ]
    source[0] = "".join(parts)
    if name == root_doc:
        source[0] += _navigation(source[0])
    elif name.endswith("/README"):
        source[0] += _tree([":glob:", "*"])


def _outward(text: str, folder: Path) -> str:
    def address(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / found[2]))
        if path.is_relative_to(links.DOCS):
            return found[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{found[1]}{REPOSITORY}/{kind}/main/{path.relative_to(ROOT)}{found[3] or ''})"

    return _INLINE.sub(address, text)


def _navigation(index: str) -> str:
    """Return the directives for the groups of the index."""
    trees: list[list[str]] = []
    for found in _GROUP.finditer(index):
        if found[1]:
            trees.append([f":caption: {found[1]}"])
        elif not found["page"].startswith(".."):
            trees[-1].append(f"{found['title']} <{found['page']}>")
    return "".join(map(_tree, trees))


def _tree(lines: list[str]) -> str:
    return "\n\n```{toctree}\n:hidden:\n" + "\n".join(lines) + "\n```\n"


def _complete(app: Any, _: Exception | None) -> None:
    """Make the index the first page, and copy the plots: Sphinx does not know files that only HTML elements name."""
    site = Path(app.outdir)
    shutil.copy(site / f"{root_doc}.html", site / "index.html")
    for plot in links.DOCS.rglob("*.svg"):
        shutil.copy(plot, site / plot.relative_to(links.DOCS))
