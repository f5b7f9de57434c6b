"""Run the modules of failed tests once more, in new clusters: ``python -m tests.again tests/unit`` after pytest failed.

Tests on real clusters and tests of CPU time depend on timing, which varies on a busy machine. A defect of the product
fails again. Tests that pass now are listed as unstable and need a fix. After more than a few failures nothing is run,
because that is no coincidence.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 6
"""Modules that may have failed."""


def modules(failed: dict[str, bool], folders: tuple[str, ...]) -> list[str]:
    """Return the files of the failed tests in the folders."""
    files = {test.partition("::")[0] for test in failed}
    return sorted(file for file in files if file.startswith(folders) and Path(file).exists())


def main(folders: list[str]) -> int:
    """Run again what failed in the folders, and return the exit code of the second run, or 1 if there is none."""
    failed = json.loads(LAST_FAILED.read_text("utf-8")) if LAST_FAILED.exists() else {}
    files = modules(failed, tuple(folders))
    if not files or len(files) > MOST:
        print(f"{len(files)} modules have failed; at most {MOST} are run again")
        return 1
    print(f"run again: {' '.join(files)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", *files], check=False).returncode
    if code == 0:
        print("UNSTABLE, failed before and passed now:", *files, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
