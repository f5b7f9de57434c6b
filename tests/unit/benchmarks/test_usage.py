"""Idle CPU is measured while no cluster gets writes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.benchmarks import request_counts, usage
from tests.benchmarks.usage import ProcessUsage, idle

SECONDS = 0.05
BUSY, QUIET = 0.01, 0.001
"""CPU seconds in a period with and without writes."""


class _WritingProcess:
    """A process that writes events to the upper cluster until the clusters were read so often."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, writes_until: int) -> None:
        self._writes_until = writes_until
        self._events = self._reads = 0
        self._cpu = 0.0
        monkeypatch.setattr(request_counts, "served_by", self._served_by)
        monkeypatch.setattr(usage, "usage", self._usage)

    async def _served_by(self, _sandbox: Any) -> dict[str, Counter[str]]:
        self._reads += 1
        self._events += 20 if self._reads <= self._writes_until else 0
        reads = {"GET pods": self._reads, "POST subjectaccessreviews": self._reads}
        return {"upper": Counter({"POST events": self._events, **reads}), "lower1": Counter(reads)}

    def _usage(self, _pid: int) -> ProcessUsage:
        self._cpu += BUSY if self._reads < self._writes_until else QUIET
        return ProcessUsage(cpu=self._cpu, peak_mib=70, rss_mib=60)


@pytest.mark.parametrize("writes_until", [0, 2, 6])
async def test_periods_with_writes_do_not_count_as_idle(monkeypatch, writes_until):
    """Reads and reviews do not end the idle state."""
    _WritingProcess(monkeypatch, writes_until)
    share, rss = await idle(None, 1, seconds=SECONDS)  # type: ignore[arg-type] # read by the fake only
    assert 0 < share <= QUIET / SECONDS
    assert rss == 60


async def test_a_process_that_never_stops_writing_is_never_idle(monkeypatch):
    """The benchmark fails instead of storing a wrong figure."""
    _WritingProcess(monkeypatch, 1_000_000)
    with pytest.raises(TimeoutError):
        await idle(None, 1, seconds=0.001, limit=0.1)  # type: ignore[arg-type] # read by the fake only
