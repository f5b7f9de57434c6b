"""Command blocks of Markdown pages: pasteable commands, in order, and the files that a page asks the reader to write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "charts/virtual-node/README.md")
START = ROOT / "docs/start.md"
"""The first page for new users. Its clusters have a real node (``test_start_page.py``)."""
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_REASON = re.compile(r"<!-- not run: (?P<reason>[^>]+) -->\s*\Z")
_ALONE = re.compile(r"<!-- run on its own -->\s*\Z")
_FILE = re.compile(r"^# (?P<name>[\w.-]+\.yaml)\b")
_SHELLS = frozenset({"sh", "bash", "console"})
_SEPARATORS = frozenset({"|", "&&", "||", ";", "&"})


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    script: str
    """The commands of a shell block, or the text of a file."""
    file: str = ""
    """Name of the file that the block is; empty: it has commands."""
    reason: str = ""
    """Why the commands cannot run in a test; empty: they run."""
    output: tuple[str, ...] = ()
    """The lines below the commands of a session."""
    alone: bool = False
    """An alternative to the blocks before it: it needs clusters without them."""

    @property
    def place(self) -> str:
        """Return its position, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that are commands, or files with a name in their first line."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent, language = found["indent"], found["language"]
        body = "".join(f"{line.removeprefix(indent)}\n" for line in found["body"].splitlines())
        line = text.count("\n", 0, found.start()) + 2
        before = text[: found.start()]
        reason = _REASON.search(before)
        if language in _SHELLS:
            script, output = _session(body) if language == "console" else (body, ())
            yield Block(
                page,
                line,
                script,
                reason=reason["reason"] if reason else "",
                output=output,
                alone=bool(_ALONE.search(before)),
            )
        elif language == "yaml" and (named := _FILE.match(body)):
            yield Block(page, line, body, file=named["name"])


def _session(body: str) -> tuple[str, tuple[str, ...]]:
    """Return the commands of a block that shows a session (lines after ``$``, with their continuations), and the other lines."""
    typed, output, goes_on = [], [], False
    for line in body.splitlines():
        if goes_on or line.startswith("$ "):
            typed.append(line if goes_on else line.removeprefix("$ "))
            goes_on = line.endswith("\\")
        else:
            output.append(line)
    return "".join(f"{line}\n" for line in typed), tuple(output)


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a script, without redirections and substitutions."""
    for line in script.replace("\\\n", " ").splitlines():
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            found = list(lexer)
        except ValueError:  # a quotation over several lines
            found = line.split()
        for word in [*found, ";"]:
            if word in _SEPARATORS:
                if words:
                    yield words
                words = []
            else:
                words.append(word)
