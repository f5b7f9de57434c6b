"""``virtual-node check`` compares Service ranges where ``services.clusterIP: same`` asks for upper addresses."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import pytest
from aiohttp import web

from clusterset.config import Cluster as LowerCluster
from clusterset.config import ClusterServicesConfig
from tests.unit.controller_runtime.loopback import failure, reply, serve
from tests.unit.virtual_node.commands.check.test_check import REVIEWS
from tests.unit.virtual_node.commands.run_command import kubeconfig
from virtual_node.commands import check as command
from virtual_node.commands.check import CheckResult
from virtual_node.config.types import Config
from virtual_node.examine import reader
from virtual_node.examine.facts import SERVICE_RANGES, ServiceRanges
from virtual_node.examine.snapshot import Snapshot, View

CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
SERVICES = "/api/v1/namespaces/default/services"
UPPER, OTHER = "10.96.0.0/16", "10.97.0.0/16"


class Cluster:
    """An API server with Service ranges that are visible in objects, in refusals, or not at all.

    As in Kubernetes 1.34, one range judges a dry run. Here it is the last range in every eighth dry run, else the first.
    """

    def __init__(
        self, *cidrs: str, tells: str = "objects", may_create: bool = True, ready: bool = True
    ) -> None:
        self.ranges = [ipaddress.ip_network(one) for one in cidrs]
        self.range = self.ranges[0]
        self.tells = tells
        self.ready = ready
        self.may_create = may_create
        self.writes: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        known: dict[str, dict[str, Any]] = {
            "/version": {"gitVersion": "v1.34.1", "minor": "34"},
            REVIEWS: {"status": {"allowed": True}},
            "/api/v1/namespaces/kube-system": {"metadata": {"uid": str(self.range)}},
        }
        if request.path == SERVICES:
            return self._create(request, (await request.json())["spec"]["clusterIP"])
        if request.path == CIDRS and self.tells == "objects":
            items = [
                {
                    "metadata": {"name": f"range-{place}"},
                    "spec": {"cidrs": [str(one)]},
                    "status": {"conditions": [{"type": "Ready", "status": str(self.ready or place == 0)}]},
                }
                for place, one in enumerate(self.ranges)
            ]
            return reply({"kind": "List", "metadata": {}, "items": items})
        if request.path == "/api/v1/services":
            item = {"metadata": {"name": "a", "namespace": "a"}, "spec": {"clusterIP": str(self.range[9])}}
            return reply({"kind": "List", "metadata": {}, "items": [item]})
        if request.path in known:
            return reply(known[request.path])
        return failure(404, "NotFound", f"{request.path} not found")

    def _create(self, request: web.Request, address: str) -> web.StreamResponse:
        self.writes.append(request.query["dryRun"])
        if not self.may_create:
            return failure(403, "Forbidden", "services is forbidden")
        judge = self.ranges[-1 if len(self.writes) % 8 == 0 else 0]
        if ipaddress.ip_address(address) in judge:
            return reply({}, status=201)
        why = "the provided network does not match the current range"
        if self.tells == "refusals":
            why = f"the provided IP ({address}) is not in the valid range. The range of valid IPs is {judge}"
        return failure(422, "Invalid", f"spec.clusterIPs: failed to allocate IP {address}: {why}")


async def _check(
    folder: Path, upper: Cluster, lower: Cluster, mode: Literal["own", "same"]
) -> list[CheckResult]:
    """The rows about Service ranges."""
    for name in ("upper", "lower"):
        (folder / name).mkdir()
    async with serve(upper.answer) as above, serve(lower.answer) as below:
        tokyo = LowerCluster(
            name="tokyo",
            kubeconfig=kubeconfig(folder / "lower", below.url),
            services=ClusterServicesConfig(cluster_ip=mode),
        )
        config = Config(kubeconfig=kubeconfig(folder / "upper", above.url), clusters=[tokyo])
        # A hundred requests about rights, which other tests check.
        with mock.patch.object(reader, "may", mock.AsyncMock(return_value=True)):
            findings = await command.run(config)
    assert {*upper.writes, *lower.writes} <= {"All"}, "only dry runs"
    return [one for one in findings if one.check == "service range"]


@pytest.mark.parametrize("may_create", [True, False])
@pytest.mark.parametrize("tells", ["objects", "refusals", "nothing"])
@pytest.mark.parametrize("same", [True, False])
async def test_ranges_are_compared(tmp_path, same, tells, may_create):
    """The upper range without any right to create: by the addresses of its Services if nothing else shows it."""
    above = Cluster(UPPER, tells=tells, may_create=may_create)
    (row,) = await _check(tmp_path, above, Cluster(UPPER if same else OTHER, tells=tells), "same")
    assert (row.cluster, row.ok) == ("tokyo", same)
    assert ("services.clusterIP: own" in row.fix) is not same
    if tells == "objects":
        assert row.detail == (
            f"contains {UPPER}" if same else f"{OTHER} does not contain {UPPER} of the upper cluster"
        )


@pytest.mark.parametrize("tells", ["objects", "refusals", "nothing"])
async def test_an_added_range_is_found(tmp_path: Path, tells: str):
    """Although most dry runs are judged by the first range, which does not contain the address."""
    (row,) = await _check(tmp_path, Cluster(UPPER), Cluster(OTHER, UPPER, tells=tells), "same")
    assert (row.ok, row.detail) == (True, f"contains {UPPER}")


async def test_a_range_that_is_not_ready_does_not_count(tmp_path: Path):
    """The server assigns none of its addresses."""
    (row,) = await _check(tmp_path, Cluster(UPPER), Cluster(OTHER, UPPER, ready=False), "same")
    assert (row.ok, row.detail) == (False, f"{OTHER} does not contain {UPPER} of the upper cluster")


async def test_nothing_is_checked_without_the_setting(tmp_path: Path):
    """Other configurations need no overlap of ranges."""
    upper, lower = Cluster(UPPER), Cluster(OTHER)
    assert await _check(tmp_path, upper, lower, "own") == []
    assert upper.writes == lower.writes == []


@pytest.mark.parametrize(
    ("fits", "ok", "detail"),
    [
        (
            {UPPER: True, "fd00::/108": False},
            False,
            "10.97.0.0/16 does not contain fd00::/108 of the upper cluster",
        ),
        ({UPPER: None}, True, "unknown: a cluster does not report its range"),
        ({}, True, "unknown: a cluster does not report its range"),
    ],
)
def test_verdict_names_only_missing_ranges(fits, ok, detail):
    """An unknown range is no fault."""
    lower = View("tokyo")
    lower.put(SERVICE_RANGES, ServiceRanges(fits, [OTHER]))
    (row,) = command.rows(Snapshot(datetime.now(UTC), lowers=[lower]))
    assert (row.check, row.ok, row.detail) == ("service range", ok, detail)
