"""Whether unit tests notice changed product code: ``python -m tests.mutants 60 --seed 1``.

Each mutant is one small change of one line: another comparison, another constant, a negated condition, a result of None, or
a branch that does nothing. A process of its own imports the changed module and runs the test files that are closest to it,
until one fails, so run this on a tree whose tests pass. No file is written. The report lists the mutants that survived; ``--json`` compares two runs of one seed.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import multiprocessing
import os
import random
import resource
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType

from hack.size import PRODUCT

_SHARED = (
    "aiohttp",
    "cryptography.x509",
    "jsonpatch",
    "msgspec",
    "prometheus_client",
    "pytest",
    "structlog",
    "yaml",
)
"""Libraries that each process gets from its parent, because importing them takes a second. pytest imports its plug-ins."""
_SECONDS = 60
"""CPU time of a mutant's tests. A mutant that uses more has changed what the program does: it counts as killed."""
_FILES = 10
"""Number of test files that run for one mutant."""
_OTHER: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Mutant:
    """A change of a file: the text from ``start`` to ``end`` (bytes) becomes ``text``."""

    file: str
    line: int
    start: int
    end: int
    text: str

    @property
    def module(self) -> str:
        """Return the name of the changed module."""
        return ".".join(Path(self.file).with_suffix("").parts).removesuffix(".__init__")

    def source(self, before: bytes) -> bytes:
        """Return the changed content of the file."""
        return before[: self.start] + self.text.encode() + before[self.end :]

    def describe(self, before: bytes) -> str:
        """Return file, line, and the text before and after."""
        old = " ".join(before[self.start : self.end].decode().split())
        return f"{self.file}:{self.line}: {old[:60]} -> {self.text[:60]}"


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """Yield all changes of a file's functions."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            for node in (node for statement in body for node in ast.walk(statement)):
                for first, last, text in _changes(node):
                    assert last.end_lineno is not None
                    assert last.end_col_offset is not None
                    start = starts[first.lineno - 1] + first.col_offset
                    end = starts[last.end_lineno - 1] + last.end_col_offset
                    yield Mutant(file, first.lineno, start, end, text)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt, str]]:
    """Yield changes of one node: the first and the last node that a text replaces."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield node, node, f"({ast.unparse(left)}) {_OTHER[type(operator)]} ({ast.unparse(right)})"
        case ast.Constant(value=bool(value)):
            yield node, node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, node, str(value + 1)
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield node, node, f"({word.join(f'({ast.unparse(one)})' for one in values)})"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, value, "None"
        case ast.If(test=test, body=[first, *_] as body):
            yield test, test, f"(not ({ast.unparse(test)}))"
            yield first, body[-1], "pass"


def choose(root: Path, count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """Return random changes of the product, at most one per line; the same for the same product and seed.

    ``only`` has the beginnings of the files' paths; empty: all files.
    """
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for package in PRODUCT:
        for path in sorted((root / package).rglob("*.py")):
            file = str(path.relative_to(root))
            if only and not file.startswith(tuple(only)):
                continue
            for mutant in mutants(file, path.read_bytes()):
                lines.setdefault((file, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    chosen = chance.sample(sorted(lines), min(count, len(lines)))
    return [chance.choice(sorted(set(lines[line]))) for line in chosen]


def tests_of(root: Path) -> dict[str, set[str]]:
    """Return, by test file, the modules that it or its helpers import."""
    imports = {
        ".".join(path.relative_to(root).with_suffix("").parts): _imports(path)
        for path in (root / "tests").rglob("*.py")
    }

    def reached(module: str, seen: set[str]) -> set[str]:
        if module not in seen and module in imports:
            seen.add(module)
            for name in imports[module]:
                if name.startswith("tests."):
                    reached(name, seen)
        return seen

    return {
        f"{module.replace('.', '/')}.py": {name for one in reached(module, set()) for name in imports[one]}
        for module in imports
        if module.startswith("tests.unit.") and module.rpartition(".")[2].startswith("test_")
    }


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return names


def closest(mutant: Mutant, tests: dict[str, set[str]]) -> list[str]:
    """Return the test files to run for a mutant: first that of its name, then those of its folder or that import it.

    Those of its folder may test it through another module, so they run although they do not import it.
    """
    parts = Path(mutant.file).with_suffix("").parts

    def distance(file: str) -> tuple[bool, bool, int, bool, str]:
        path = Path(file).with_suffix("").parts[2:]
        shared = next(
            (i for i, both in enumerate(zip(path, parts, strict=False)) if both[0] != both[1]), len(path)
        )
        is_imported = mutant.module in tests[file]
        return (
            path[-1] != f"test_{parts[-1]}" or path[:-1] != parts[:-1],
            not is_imported and shared < len(parts) - 1,
            -shared,
            not is_imported,
            file,
        )

    near = sorted(tests, key=distance)
    return [file for file in near if not all(distance(file)[:2])][:_FILES] or near[:_FILES]


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from changed source."""

    def __init__(self, name: str, path: Path, mutant: Mutant) -> None:
        super().__init__(name, str(path))
        self._source = mutant.source(path.read_bytes())

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the changed module."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        self._root, self._mutant = root, mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        file = self._root / self._mutant.file
        return importlib.util.spec_from_file_location(name, file, loader=_Changed(name, file, self._mutant))


def _run(root: Path, mutant: Mutant, files: list[str]) -> None:
    """Run tests with a changed module, in a process of its own, and end it with pytest's code."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.chdir(root)
    sys.meta_path.insert(0, _Finder(root, mutant))
    code = 3
    try:
        code = importlib.import_module("pytest").main(["-x", "-q", "-p", "no:cacheprovider", *files])
    finally:
        os._exit(code)


def outcome(root: Path, mutant: Mutant, files: list[str]) -> str:
    """Return ``killed``, ``survived``, ``untested`` if no test was collected, or ``error`` if pytest could not run."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(root, mutant, files))
    process.start()
    process.join(_SECONDS * 10)
    if process.is_alive():
        process.kill()
        process.join()
    return {0: "survived", 3: "error", 4: "error", 5: "untested"}.get(process.exitcode or 0, "killed")


def main() -> int:
    """Run mutants of a tree, with the tests of that tree, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="paths of packages or files; default: the product"
    )
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="a working tree; default: this one")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file to write the outcomes to")
    options = parser.parse_args()
    root = options.tree.resolve()
    sys.path.insert(0, str(root))
    for name in _SHARED:
        importlib.import_module(name)
    tests, chosen = tests_of(root), choose(root, options.count, options.seed, options.only)

    first = chosen[0]
    unchanged = (root / first.file).read_bytes()[first.start : first.end].decode()
    control = outcome(root, replace(first, text=unchanged), closest(first, tests))
    if control != "survived":
        print(f"the tests of {first.file} do not pass without a change: {control}")
        return 1

    def judge(mutant: Mutant) -> str:
        verdict = outcome(root, mutant, closest(mutant, tests))
        print(f"{verdict:9}{mutant.describe((root / mutant.file).read_bytes())}", flush=True)
        return verdict

    with ThreadPoolExecutor(options.processes) as threads:
        verdicts = list(threads.map(judge, chosen))
    print({verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))})
    if options.json:
        named = zip(chosen, verdicts, strict=True)
        told = {mutant.describe((root / mutant.file).read_bytes()): verdict for mutant, verdict in named}
        options.json.write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
