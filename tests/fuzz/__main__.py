"""Fuzz by hand: `python -m tests.fuzz [--seconds 300] [--coverage] [TARGET ...]`.

Stops at an input that breaks a bound, writes it to a file and prints the command that repeats it. `--coverage` uses
atheris (coverage-guided; `pip install atheris`), one target per run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.mutation import LONGEST, hostile
from tests.fuzz.target import Target, check

_OURS = ["controller_runtime", "clusterset", "virtual_node", "webhook", "descheduler", "multi_scheduler"]


def main() -> int:
    """Run the targets named, or all, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", metavar="TARGET", help="default: all, see tests/fuzz/targets.py")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="of the first input")
    parser.add_argument("--coverage", action="store_true", help="guide by coverage (atheris)")
    parser.add_argument("--input", type=Path, help="repeat one input from a file")
    options = parser.parse_args()
    targets = _load(is_instrumented=options.coverage)
    if unknown := set(options.target) - set(targets):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(targets)}")
    chosen = [targets[name] for name in options.target or targets]
    if options.input:
        for target in chosen:
            check(target, options.input.read_bytes())
        return 0
    if options.coverage:
        return _by_coverage(chosen[0], options.seconds)
    return max(_by_chance(target, options.seconds, options.seed) for target in chosen)


def _load(*, is_instrumented: bool) -> dict[str, Target]:
    """Import the targets; coverage is measured only for this project's packages, because instrumenting libraries takes minutes."""
    with contextlib.ExitStack() as stack:
        if is_instrumented:
            import atheris  # noqa: PLC0415 - optional

            stack.enter_context(atheris.instrument_imports(include=_OURS))
        targets: dict[str, Target] = importlib.import_module("tests.fuzz.targets").TARGETS
    return targets


def _by_chance(target: Target, seconds: float, seed: int) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        rng = random.Random(seed + count)
        text = hostile(rng.choice(target.seeds), rng)
        try:
            check(target, text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
            path = Path(tempfile.gettempdir()) / f"{target.name}-{seed + count}.input"
            path.write_bytes(text)
            print(f"{target.name}: {type(error).__name__}: {error}")
            print(f"  repeat: python -m tests.fuzz {target.name} --input {path}")
            return 1
        count += 1
    print(f"{target.name}: {count} inputs, no failure")
    return 0


def _by_coverage(target: Target, seconds: float) -> int:
    import atheris  # noqa: PLC0415 - optional

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / str(number)).write_bytes(seed)

        def mutate(text: bytes, limit: int, seed: int) -> bytes:
            rng = random.Random(seed)
            other: bytes = hostile(text, rng) if rng.random() < 0.5 else atheris.Mutate(text, limit)
            return other[:limit]

        arguments = [sys.argv[0], f"-max_total_time={seconds:.0f}", f"-max_len={LONGEST}", corpus]
        atheris.Setup(arguments, lambda text: check(target, text), custom_mutator=mutate)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
