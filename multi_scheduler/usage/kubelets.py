"""Usage from kubelets, through the lower API server's node proxy: one request at a time, node by node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, Forbidden, Unauthorized, Unavailable
from multi_scheduler.formulas.pressure import Pressure, Stall
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.store import Sample

_TIMEOUT = 5.0
"""Seconds that one kubelet may take, because the other nodes wait for it."""
_SERVER_ERROR = 500
_LONGEST_PAUSE = 16
"""Largest number of rounds in which a kubelet that did not respond is skipped."""


class _Kubelets(Source):
    path = ""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._silent: dict[str, tuple[int, int]] = {}
        """Node → number of rounds to skip, and how many of them were skipped so far."""

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield a sample of each node that responds; see ``Source.read``."""
        self._silent = {name: rounds for name, rounds in self._silent.items() if name in nodes}
        last: Exception | None = None
        answered = False
        for name in nodes:
            if self._is_left_out(name):
                continue
            try:
                sample = self.sample(name, await self.ask(name))
            except (Forbidden, Unauthorized):
                raise
            except (ApiError, ValueError) as error:
                last = error
                longest = min(2 * self._silent.get(name, (1, 0))[0], _LONGEST_PAUSE)
                self._silent[name] = longest, 0
            else:
                self._silent.pop(name, None)
                answered = True
                if sample is not None:
                    yield name, sample
            await asyncio.sleep(pause)
        if last is not None and not answered:
            raise last

    async def ask(self, name: str) -> bytes:
        return await self.get(name, self.path)

    async def get(self, name: str, path: str) -> bytes:
        url = f"/api/v1/nodes/{name}/proxy/{path}"
        return await self._client.request("GET", url, timeout=_TIMEOUT, flow="usage")

    def _is_left_out(self, name: str) -> bool:
        rounds, over = self._silent.get(name, (0, 0))
        if over >= rounds:
            return False
        self._silent[name] = rounds, over + 1
        return True

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return the sample in a response; None: no usage is known yet.

        Raises:
            ValueError: the body is not a kubelet's response.
        """
        raise NotImplementedError


class _Averages(msgspec.Struct):
    avg10: float = 0.0
    avg60: float = 0.0
    total: int = 0


class _Psi(msgspec.Struct):
    some: _Averages | None = None
    full: _Averages | None = None


class _Stats(msgspec.Struct):
    """Statistics of CPU, memory or IO."""

    time: str | None = None
    usageNanoCores: int | None = None  # noqa: N815 - the kubelet's names
    workingSetBytes: int | None = None  # noqa: N815
    psi: _Psi | None = None


class _Node(msgspec.Struct):
    cpu: _Stats | None = None
    memory: _Stats | None = None
    io: _Stats | None = None


class _Summary(msgspec.Struct):
    node: _Node


_decode = decoder(_Summary)


class Summary(_Kubelets):
    """The Summary API: usage and PSI. Source: k8s.io/kubelet, ``pkg/apis/stats/v1alpha1``."""

    path = "stats/summary"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._reduced: set[str] = set()

    async def ask(self, name: str) -> bytes:
        """Return the complete summary, or the CPU and memory summary of a kubelet that cannot create the complete one.

        The smaller summary has no IO pressure. A kubelet without file system statistics answers 500 to the complete one.
        """
        if name not in self._reduced:
            try:
                return await self.get(name, self.path)
            except Unavailable as error:
                if error.code != _SERVER_ERROR:
                    raise
        answer = await self.get(name, f"{self.path}?only_cpu_and_memory=true")
        self._reduced.add(name)
        return answer

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return usage, and pressure if the kubelet reports it."""
        node = _decode(body).node
        cpu, memory = node.cpu, node.memory
        times = [timestamps.parse(one.time or "").timestamp() for one in (cpu, memory) if one is not None]
        if not times:
            return None
        return Sample(
            max(times),
            cpu.usageNanoCores / 1e6 if cpu is not None and cpu.usageNanoCores is not None else None,
            memory.workingSetBytes if memory is not None else None,
            _pressure(cpu, memory, node.io),
        )


def _pressure(*parts: _Stats | None) -> Pressure | None:
    psi = [part.psi if part is not None else None for part in parts]
    # Kubelets on cgroup v1 have no PSI and report only zeros, so pressure is unknown. With PSI, some total since boot is
    # above zero.
    if not any(one.some.total for one in psi if one is not None and one.some is not None):
        return None
    return Pressure(*(_stall(one) for one in psi))


def _stall(psi: _Psi | None) -> Stall:
    psi = psi or _Psi()
    some, full = psi.some or _Averages(), psi.full or _Averages()
    return Stall(some.avg10, some.avg60, full.avg10, full.avg60)


_CPU, _MEMORY = b"node_cpu_usage_seconds_total ", b"node_memory_working_set_bytes "
_LONGEST_LINE = 200


class Resource(_Kubelets):
    """``/metrics/resource``: smaller than the summary, usage only. CPU needs two samples, because it is a counter."""

    path = "metrics/resource"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._before: dict[str, tuple[float, float]] = {}

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return the usage since the last sample; None: first sample, no newer time, or the counter was reset."""
        cpu = _metric(body, _CPU)
        if cpu is None or not cpu[1] > 0:
            raise ValueError("no node_cpu_usage_seconds_total with a time")
        seconds, at = cpu
        before, then = self._before.get(name, (seconds, at))
        if then < at or name not in self._before:
            self._before[name] = seconds, at
        rate = 1000 * (seconds - before) / (at - then) if at > then and seconds >= before else None
        memory = _metric(body, _MEMORY)
        return Sample(at, rate, memory[0] if memory is not None else None) if rate is not None else None


def _metric(body: bytes, metric: bytes) -> tuple[float, float] | None:
    """Return value and time, in seconds, of a metric without labels; None: it is missing.

    Only its line is read, because the body has several lines for each container.
    """
    start = 0 if body.startswith(metric) else body.find(b"\n" + metric) + 1
    if not start and not body.startswith(metric):
        return None
    line = body[start : start + _LONGEST_LINE].partition(b"\n")[0]
    value, _, moment = line.removeprefix(metric).partition(b" ")
    return float(value), float(moment or b"nan") / 1000
