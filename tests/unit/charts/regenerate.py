"""``python -m tests.unit.charts.regenerate``: write the golden files; read the difference before committing it."""

from __future__ import annotations

from tests.unit.charts.rendering import CASES, GOLDEN, golden


def main() -> int:
    """Write a golden file for each file of values, remove those without one; return the exit code."""
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        (GOLDEN / f"{case}.yaml").write_text(golden(case), encoding="utf-8")
    for path in GOLDEN.glob("*.yaml"):
        if path.stem not in CASES:
            path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
