"""The check of links finds each kind of broken link. ``make lint`` runs it on all pages."""

from __future__ import annotations

import pytest

from hack.docs import links

PAGE = """# A page

## Twice, `with` code!

## Twice, `with` code!

```sh
# no heading
echo "[no link](gone.md)"
```
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "plot.svg").touch()
    return tmp_path


def test_anchors_are_githubs(folder):
    """Punctuation is left out, and a second heading of a name gets a number."""
    assert links.anchors(folder / "page.md") == {"#a-page", "#twice-with-code", "#twice-with-code-1"}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (
            "[a](page.md) [b](page.md#a-page) [c](#here) [d](https://example.com/gone.md) [e](mailto:a@b.c)",
            [],
        ),
        ("[a](page.md#twice-with-code-1) [b](../{folder}/page.md)", []),
        ("[a](gone.md)", ["gone.md"]),
        ("[a](page.md#gone) and [b](#gone)", ["page.md#gone", "#gone"]),
        ("[a](page.md#no-heading)", ["page.md#no-heading"]),
        ("![a](plot.svg) ![b](gone.png)", ["gone.png"]),
        ('<source srcset="gone.svg"><img src="plot.svg">', ["gone.svg"]),
        ("    ```\n    [a](gone.md)\n    ```\n\n[b](lost.md)", ["lost.md"]),
    ],
)
def test_links_that_lead_nowhere_are_listed(folder, text, broken):
    page = folder / "from.md"
    page.write_text(f"# Here\n\n{text.replace('{folder}', folder.name)}\n", encoding="utf-8")
    assert links.broken(page) == broken


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ('next="as in docs/operate/install.md"', []),
        ("see ``docs/gone.md``", ["docs/gone.md"]),
        ("https://github.com/virtual-node/virtual-node/blob/main/docs/operate/monitor.md#virtualnodedown", []),
        ("url: https://github.com/virtual-node/virtual-node/blob/main/docs/operate/monitor.md#", []),
        ("https://github.com/virtual-node/virtual-node/blob/main/docs/operate/monitor.md#gone", ["docs/operate/monitor.md#gone"]),
        ("https://kubernetes.io/docs/gone.md", []),
    ],
)  # fmt: skip
def test_pages_that_a_message_names_must_exist(tmp_path, text, missing):
    file = tmp_path / "messages.py"
    file.write_text(text, encoding="utf-8")
    assert links.missing(file) == missing


def test_the_check_reads_every_page():
    names = {page.relative_to(links.ROOT).as_posix() for page in links.pages()}
    assert {
        "README.md",
        "docs/README.md",
        "docs/decisions/README.md",
        "charts/virtual-node/README.md",
    } <= names
    assert len([found for page in links.pages() for found in links.links(page)]) > 500
