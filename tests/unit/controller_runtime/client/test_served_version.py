"""The version of an API group that is read, as servers begin and cease to serve it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.client.served_version import choose, metrics_api
from controller_runtime.errors import ConnectionFailed, Forbidden, NotFound, Unavailable

GROUP = "/apis/metrics.k8s.io"


class _Server:
    """An API server that serves nodes in some versions; ``None``: the group does not exist."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.discovery: Any = None
        """Its response or error instead."""
        self.failure: Exception | None = None
        """Its error for lists."""
        self.asked: list[str] = []

    async def read(self, path: str, **_: Any) -> dict[str, Any]:
        self.asked.append(path.removeprefix(GROUP))
        await asyncio.sleep(0)
        if path == GROUP:
            if isinstance(self.discovery, Exception):
                raise self.discovery
            if self.discovery is not None:
                return dict(self.discovery)
            if not self.versions:
                raise NotFound("404 page not found", code=404)
            return {"versions": [{"version": version} for version in self.versions]}
        if self.failure is not None:
            raise self.failure
        version = path.split("/")[3]
        if version not in self.versions:
            raise NotFound("404 page not found", code=404)
        return {"apiVersion": version}

    def taken(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


def _api(server: _Server) -> Any:
    client: Any = server
    return metrics_api(client)


@pytest.mark.parametrize(
    ("served", "expected"),
    [(["v1beta1"], "v1beta1"), (["v1", "v1beta1"], "v1"), (["v1beta1", "v1"], "v1"), (["v2", "v1"], "v1")],
)
def test_chooses_the_newest_known_version(served: list[str], expected: str):
    assert choose("metrics.k8s.io", served, ("v1", "v1beta1")) == expected


@pytest.mark.parametrize(("served", "named"), [([], "none"), (["v2"], "v2"), (["v9" * 999], "v9v9")])
def test_names_the_versions_if_no_known_version_is_served(served: list[str], named: str):
    with pytest.raises(NotFound, match=f"in version {named}.*not v1 or v1beta1") as raised:
        choose("metrics.k8s.io", served, ("v1", "v1beta1"))
    assert len(str(raised.value)) < 400


async def test_reads_discovery_once():
    """Also for lists that are read at the same time."""
    server = _Server("v1beta1")
    api = _api(server)
    await asyncio.gather(api.read("nodes"), api.read("pods"))
    await api.read("nodes")
    assert sorted(server.taken()) == ["", "/v1beta1/nodes", "/v1beta1/nodes", "/v1beta1/pods"]


@pytest.mark.parametrize(("before", "after"), [(("v1",), ("v1beta1",)), (("v1beta1",), ("v1",))])
async def test_reads_discovery_again_when_the_version_is_no_longer_served(
    before: tuple[str], after: tuple[str]
):
    """After an upgrade or a downgrade, the first list already succeeds."""
    server = _Server(*before)
    api = _api(server)
    await api.read("nodes")
    server.versions = after
    server.taken()
    answers = await asyncio.gather(api.read("nodes"), api.read("pods"))
    assert [answer["apiVersion"] for answer in answers] == [after[0], after[0]]
    assert server.taken().count("") == 1


async def test_asks_only_discovery_while_the_group_does_not_exist():
    """The error is raised; the group is read as soon as it exists."""
    server = _Server()
    api = _api(server)
    for _ in range(2):
        with pytest.raises(NotFound):
            await api.read("nodes")
    assert server.taken() == ["", ""]
    server.versions = ("v1",)
    assert await api.read("nodes") == {"apiVersion": "v1"}


async def test_a_group_that_is_removed_raises_not_found_in_all_concurrent_lists():
    server = _Server("v1")
    api = _api(server)
    await api.read("nodes")
    server.versions = ()
    for found in await asyncio.gather(api.read("nodes"), api.read("pods"), return_exceptions=True):
        assert isinstance(found, NotFound)


async def test_reads_the_oldest_version_where_discovery_is_forbidden():
    server = _Server("v1", "v1beta1")
    server.discovery = Forbidden("no", code=403)
    assert await _api(server).read("nodes") == {"apiVersion": "v1beta1"}


@pytest.mark.parametrize("error", [Unavailable("starting", code=503), ConnectionFailed("away")])
async def test_keeps_the_version_while_the_api_is_unavailable(error: Exception):
    server = _Server("v1")
    api = _api(server)
    await api.read("nodes")
    server.taken()
    server.failure = error
    with pytest.raises(type(error)):
        await api.read("nodes")
    server.failure = None
    await api.read("nodes")
    assert server.taken() == ["/v1/nodes", "/v1/nodes"]


@pytest.mark.parametrize(
    "malformed", [{}, {"versions": None}, {"versions": 3}, {"versions": ["v1", {}, None]}]
)
async def test_malformed_discovery_serves_no_version(malformed: dict[str, Any]):
    server = _Server("v1")
    server.discovery = malformed
    with pytest.raises(NotFound, match="not v1 or v1beta1"):
        await _api(server).read("nodes")
