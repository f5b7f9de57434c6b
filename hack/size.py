"""Prints the size of the code in one revision, the difference of two, or the files that a change touched.

``python -m hack.size`` counts the working tree, ``python -m hack.size A B`` revisions A and B and their difference, and
``python -m hack.size --changes A..B`` the files that these commits touched.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import subprocess
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import reduce
from pathlib import Path

PRODUCT = (
    "controller_runtime", "clusterset", "virtual_node", "webhook", "descheduler", "multi_scheduler", "swarm",
)  # fmt: skip
BESIDE = ("hack", "tests")
SMALL_FILE = 40
"""Files with fewer lines count as small."""
LONG_FUNCTION = 40
"""Functions with more lines of code count as long."""
_BLANK = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}


@dataclass(frozen=True, slots=True)
class Size:
    """Counts over Python files."""

    files: int = 0
    lines: int = 0
    code: int = 0
    """Lines without docstrings, comments and blank lines; imports are code."""
    docstrings: int = 0
    """Lines of docstrings, those of attributes included."""
    imports: int = 0
    small: int = 0
    """Files with fewer than ``SMALL_FILE`` lines."""
    long: int = 0
    """Functions with more than ``LONG_FUNCTION`` lines of code."""

    def plus(self, other: Size, sign: int = 1) -> Size:
        """Return the sums, or with sign -1 the differences."""
        return Size(*(mine + sign * more for mine, more in zip(astuple(self), astuple(other), strict=True)))


def measure(source: str) -> Size:
    """Return the size of one file."""
    tree = ast.parse(source)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if tokenize.tok_name[t.type] not in _BLANK)
    docstrings = _lines(filter(_is_docstring, ast.walk(tree)))
    code = set(itertools.chain.from_iterable(spans)) - docstrings
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    lines = len(source.splitlines())
    return Size(
        files=1,
        lines=lines,
        code=len(code),
        docstrings=len(docstrings),
        imports=len(_lines(filter(_is_import, ast.walk(tree)))),
        small=lines < SMALL_FILE,
        long=sum(len(code & _lines([function])) > LONG_FUNCTION for function in functions),
    )


def measure_tree(root: Path) -> dict[str, Size]:
    """Return the sizes of the top packages in a directory, by name; packages that do not exist are left out."""
    sizes = {}
    for package in (*PRODUCT, *BESIDE):
        if sources := [path.read_text() for path in (root / package).rglob("*.py")]:
            sizes[package] = reduce(Size.plus, map(measure, sources))
    return sizes


def difference(before: Mapping[str, Size], after: Mapping[str, Size]) -> dict[str, Size]:
    """Return what each package grew by; less than zero where it shrank."""
    return {name: after.get(name, Size()).plus(before.get(name, Size()), -1) for name in {**before, **after}}


def table(sizes: Mapping[str, Size]) -> str:
    """Return a Markdown table of the packages with a row for the whole product."""
    product = {name: sizes[name] for name in PRODUCT if name in sizes}
    beside = {name: sizes[name] for name in BESIDE if name in sizes}
    rows = {**product, "product": reduce(Size.plus, product.values(), Size()), **beside}
    header = ["package", *(field.name for field in fields(Size))]
    lines = [header, ["---", *["--:"] * (len(header) - 1)]]
    lines += [[name, *(f"{number:,}" for number in astuple(size))] for name, size in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def classify(paths: Iterable[str]) -> Counter[str]:
    """Return how many files are of the product, and how many of each other top directory."""
    tops = (path.split("/")[0] if "/" in path else "top" for path in paths)
    return Counter("product" if top in PRODUCT else top for top in tops)


def _is_docstring(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant(str())):
            return True
    return False


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _lines(nodes: Iterable[ast.AST]) -> set[int]:
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}  # type: ignore[attr-defined]


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def _of_revision(revision: str) -> dict[str, Size]:
    archive = io.BytesIO(_git("archive", revision))
    with tempfile.TemporaryDirectory() as directory, tarfile.open(fileobj=archive) as tar:
        tar.extractall(directory, filter="data")
        return measure_tree(Path(directory))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what the command line requests."""
    parser = argparse.ArgumentParser(prog="python -m hack.size", description=__doc__)
    parser.add_argument("revisions", nargs="*", help="one or two Git revisions; none: the working tree")
    parser.add_argument("--changes", metavar="A..B", help="count the files that these commits touched")
    options = parser.parse_args(arguments)
    if options.changes:
        touched = classify(_git("diff", "--name-only", options.changes).decode().splitlines())
        print(", ".join(f"{name} {number}" for name, number in sorted(touched.items())))
        return
    sizes = [_of_revision(revision) for revision in options.revisions] or [measure_tree(Path())]
    print("\n\n".join(map(table, sizes)))
    if len(sizes) == 2:
        print("\n" + table(difference(*sizes)))


if __name__ == "__main__":
    main()
