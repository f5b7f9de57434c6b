"""The official Python client and the asyncio client: watches, logs, streams and Jobs, as programs use them."""

from __future__ import annotations

from tests.company.place import Place
from tests.company.software import Observations, Software


async def _run(place: Place) -> Observations:
    seen = {
        **await place.script("kubernetes_client.py"),
        **await place.script("kubernetes_asyncio_client.py"),
    }
    assert seen["exec"] == ["out", "err", 7], seen
    assert seen["forwarded port"][1] == "page", seen
    assert seen["followed log"] == ["1", "2", "3"], seen
    assert seen["asyncio: exit code"] == 7, seen
    return seen


SOFTWARE = Software(
    name="python-clients",
    job="pods by watch, logs, followed logs, exec with exit code and input, a forwarded port, an indexed Job, deletion",
    run=_run,
    environment="clients",
    packages=("kubernetes", "kubernetes-asyncio"),
)
