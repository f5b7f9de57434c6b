"""``virtual-node inspect`` over 5,000 lower nodes and 100,000 mirrored pods of ``canned_server``."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.canned_server import canned
from tests.benchmarks.tables import target
from tests.kubeconfigs import whole, write

NODES, PODS = 5000, 100_000
SECONDS, MIB = 30.0, 300.0
"""Targets."""


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return the command's time and memory, and its findings."""
    nodes, pods = (50, 1000) if quick else (NODES, PODS)
    async with canned(clusters=1, pods=pods, nodes=nodes) as server:
        found = await asyncio.to_thread(_inspect, server)
    targets = [
        target("`virtual-node inspect`", found["seconds"], SECONDS, "s"),
        target("its peak memory", found["peakMiB"], MIB, "MiB"),
    ]
    return {"lowerNodes": nodes, "pods": pods, **found, "targets": targets}


def _inspect(server: str) -> dict[str, Any]:
    """Run the command; return its figures.

    Raises:
        RuntimeError: a cluster could not be read.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        upper, lower = (
            write(directory / cluster, whole(cluster={"server": f"{server}/{cluster}"}))
            for cluster in ("upper", "lower-0")
        )
        argv = [
            *(sys.executable, "-m", "virtual_node", "inspect", "--output=json"),
            *(f"--kubeconfig={upper}", f"--client-kubeconfig={lower}", "--nodename=vn-0"),
        ]
        with (directory / "report").open("w+b") as report:
            begun = time.perf_counter()
            process = subprocess.Popen(argv, stdout=report)
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
            report.seek(0)
            found = json.load(report)
    if errors := [one["error"] for one in found["clusters"] if one["error"]]:
        raise RuntimeError(f"inspect could not read a cluster: {errors}")
    return {
        "seconds": seconds,
        "cpuSeconds": used.ru_utime + used.ru_stime,
        "peakMiB": used.ru_maxrss / 1024,
        "findings": len(found["findings"]),
        "summary": found["summary"],
    }
