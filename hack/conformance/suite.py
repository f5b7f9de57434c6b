"""One run of e2e.test under ginkgo against one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.conformance.report import Outcome, outcomes
from hack.sandbox.errors import SandboxError

NEVER = r"\[Serial\]|\[Disruptive\]|\[Slow\]|\[Flaky\]"
"""Tests that both runs skip by default: they need a cluster of their own, take long, or fail at random."""
_NEWS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Selection:
    """The tests to run, and how many at a time."""

    focus: str
    skip: str = NEVER
    processes: int = 4


async def run(
    selection: Selection,
    *,
    kubeconfig: Path,
    binaries: Mapping[str, Path],
    directory: Path,
    title: str,
    progress: Callable[[str], None],
) -> dict[str, Outcome]:
    """Run the selected tests and return their results; the log and ginkgo's report stay in ``directory``.

    Raises:
        SandboxError: the suite did not start or wrote no report.
    """
    directory.mkdir(parents=True, exist_ok=True)
    report, log = directory / f"{title}.json", directory / f"{title}.log"
    report.unlink(missing_ok=True)
    argv = [
        str(binaries["ginkgo"]), f"-procs={selection.processes}", "--no-color", "--timeout=24h",
        f"--focus={selection.focus}", f"--skip={selection.skip}", f"--json-report={report}",
        str(binaries["e2e.test"]), "--",
        "--provider=local", f"--kubeconfig={kubeconfig}", f"--kubectl-path={binaries['kubectl']}",
        # At start the suite waits for all nodes and all system pods; these clusters have no system pods.
        "--minStartupPods=0", "--dump-logs-on-failure=false", "--disable-log-dump",
    ]  # fmt: skip
    started = time.monotonic()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            start_new_session=True,
        )
    waiting = asyncio.ensure_future(process.wait())
    try:
        while not (await asyncio.wait({waiting}, timeout=_NEWS_SECONDS))[0]:
            done, failed = _progress(log)
            progress(f"{title}: {done} tests ended, {failed} failed, {time.monotonic() - started:.0f} s")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await waiting
    if not report.is_file():
        tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise SandboxError(f"{title}: the suite did not run: {' '.join(tail)} (log: {log})")
    return outcomes(json.loads(report.read_bytes()))


def _progress(log: Path) -> tuple[int, int]:
    """Return how many tests have ended and how many of them failed, from ginkgo's output so far."""
    text = log.read_text(encoding="utf-8", errors="replace")
    failed = sum(text.count(f"• [{state}]") for state in ("FAILED", "PANICKED", "TIMEDOUT"))
    return text.count("•"), failed
