"""Carries the metrics of workers to their parent, which serves them as one page.

The text format is not used for this, because Python's parser of it needs seconds for a large page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

PATH = "/families"
LABEL = "worker"


class _Family(msgspec.Struct, array_like=True):
    name: str
    documentation: str
    type: str
    unit: str
    samples: list[tuple[str, dict[str, str], float]]


_DECODER = msgspec.msgpack.Decoder(list[_Family])


async def serve(_request: web.Request) -> web.Response:
    """Return the metrics of this process, for ``merged``."""
    return web.Response(body=await asyncio.to_thread(encoded, prometheus_client.REGISTRY))


def encoded(registry: CollectorRegistry) -> bytes:
    """Return the metrics of a registry, for ``merged``."""
    return msgspec.msgpack.encode(
        [
            _Family(
                found.name,
                found.documentation,
                found.type,
                found.unit,
                [(sample.name, sample.labels, float(sample.value)) for sample in found.samples],
            )
            for found in registry.collect()
        ]
    )


def merged(own: CollectorRegistry, workers: Mapping[int, bytes]) -> CollectorRegistry:
    """Return a registry with the metrics of this process and of workers.

    Args:
        own: the metrics of this process; their samples get no label.
        workers: what ``encoded`` returned in the workers, by number. Their samples get the label ``worker``.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(own, workers))
    return registry


class _Merged(Collector):
    def __init__(self, own: CollectorRegistry, workers: Mapping[int, bytes]) -> None:
        self._own, self._workers = own, workers

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}

        def add(family: _Family | Metric, samples: Iterable[Sample]) -> None:
            new = Metric(family.name, family.documentation, family.type, family.unit)
            families.setdefault(family.name, new).samples.extend(samples)

        for own in self._own.collect():
            add(own, own.samples)
        for number, page in self._workers.items():
            label = {LABEL: str(number)}
            for found in _DECODER.decode(page):
                add(found, [Sample(name, labels | label, value) for name, labels, value in found.samples])
        return families.values()
