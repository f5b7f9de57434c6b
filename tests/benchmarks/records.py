"""Raw results: one JSON file per benchmark, with the machine, the versions and the seed that gave them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hack.sandbox.builds.programs import KUBERNETES_VERSION

RESULTS = Path("tests/benchmarks/results")
BUSY_SECONDS = 3.0
"""Seconds for which the work of other processes is measured."""
Record = Mapping[str, Any]


def read(name: str, directory: Path = RESULTS) -> Record | None:
    """Return the last result of a benchmark; None if there is none."""
    path = directory / f"{name}.json"
    if not path.exists():
        return None
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(directory: Path, record: Record) -> Path:
    """Replace the result of a benchmark; return its file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record['name']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


class Recording:
    """The circumstances of one run. Create it before the run, because the machine's load is part of it."""

    def __init__(self, name: str, *, seed: int, quick: bool) -> None:
        self._start = time.monotonic()
        self._record = {
            "name": name,
            "quick": quick,
            "seed": seed,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "machine": _machine(),
            "versions": {
                "python": platform.python_version(),
                "kubernetes": KUBERNETES_VERSION,
                "kernel": platform.release(),
            },
        }

    def finish(self, figures: Mapping[str, Any]) -> Record:
        """Return the record of the run with its figures."""
        seconds = round(time.monotonic() - self._start, 1)
        return {**self._record, "seconds": seconds, "figures": _rounded(figures)}


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memoryGiB": round(memory / 2**30, 1),
        "busyCoresBefore": round(_busy_cores(BUSY_SECONDS), 2),
    }


def _busy_cores(seconds: float) -> float:
    """Return how many cores other processes use. The load average would still count the previous benchmark."""
    before, start = _cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (_cpu_seconds() - before) / (time.monotonic() - start)


def _cpu_seconds() -> float:
    """Return the CPU time of all cores since boot, in seconds."""
    with Path("/proc/stat").open(encoding="utf-8") as stat:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _rounded(value: Any) -> Any:
    """Return a value with floats of at most four digits after the point, to keep the files small."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value
