"""Serving certificates by CSR: requested, approved, installed, renewed, and retried after failures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import ConfigError, Conflict, ConnectionFailed, Forbidden
from controller_runtime.tls.key_pairs import self_signed
from controller_runtime.tls.reloader import CertificateReloader
from tests.unit.virtual_node.certificates.signing import ADDRESSES, GOOD, START, FakeCluster, now
from virtual_node.certificates import Issued, ServingCertificate

looptime = pytest.mark.looptime
WEEK = timedelta(days=7)


class Keeper:
    """A ServingCertificate under test, and its recorded actions."""

    def __init__(self, cluster: FakeCluster, **options: Any) -> None:
        self.installed: list[tuple[float, Issued]] = []
        self.told: list[tuple[str, str]] = []
        client: Any = cluster
        self.subject = ServingCertificate(
            client,
            "vn-a",
            ADDRESSES,
            install=options.pop("install", self._install),
            record_event=lambda reason, message: self.told.append((reason, message)),
            now=now,
            **options,
        )

    def _install(self, issued: Issued) -> None:
        self.installed.append((asyncio.get_running_loop().time(), issued))

    async def run_for(self, seconds: float) -> None:
        """Run it for a while of virtual time, then stop it as at the end of a process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.subject.run()


@looptime
async def test_a_certificate_is_requested_as_the_node():
    """The request is impersonated, and the issued certificate is installed with its key."""
    cluster = FakeCluster()
    cluster.on_create = cluster.issue
    keeper = Keeper(cluster)
    await keeper.run_for(60)
    ((_, headers),) = cluster.created
    assert headers == {"Impersonate-User": "system:node:vn-a", "Impersonate-Group": "system:nodes"}
    ((_, issued),) = keeper.installed
    reloader = CertificateReloader.from_pair(self_signed("before"))
    reloader.replace(issued.pair)
    assert cluster.requests == {}


@looptime
async def test_without_automatic_approval_the_command_is_reported():
    """Until the approval one log line and one Event carry it, and nothing is installed."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(3000))
    await asyncio.sleep(1800)
    ((reason, message),) = keeper.told
    (name,) = cluster.requests
    assert (reason, keeper.installed) == ("ServingCertificatePending", [])
    assert f"kubectl certificate approve {name}" in message
    cluster.condition(name, "Approved")
    cluster.issue(name)
    await running
    assert len(keeper.installed) == 1
    assert cluster.approvals == []


@looptime
async def test_automatic_approval_survives_a_conflict():
    """A concurrent write of the request costs one retry."""
    cluster = FakeCluster()
    cluster.errors["update"] = [Conflict("changed", code=409)]
    keeper = Keeper(cluster, approve=True)
    await keeper.run_for(60)
    assert len(cluster.approvals) == len(keeper.installed) == 1
    assert keeper.told == []


@looptime
async def test_a_forbidden_approval_is_left_to_administrators():
    """The request stays and the command is reported."""
    cluster = FakeCluster()
    cluster.errors["update"] = [Forbidden("no", code=403)]
    keeper = Keeper(cluster, approve=True)
    await keeper.run_for(60)
    assert [reason for reason, _ in keeper.told] == ["ServingCertificatePending"]
    assert len(cluster.created) == 1


@looptime
@pytest.mark.parametrize("kind", ["Denied", "Failed"])
async def test_a_denied_request_is_repeated_with_growing_pauses(kind):
    """From two seconds to ten minutes, and only the last request remains for inspection."""
    cluster = FakeCluster()
    cluster.on_create = lambda name: cluster.condition(name, kind, "not here")
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(7200))
    await asyncio.sleep(7000)
    assert len(cluster.requests) == 1
    await running
    times = [time for time, _ in cluster.created]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(2.1, abs=0.2)
    assert all(600 <= pause <= 661 for pause in pauses[9:])
    assert "not here" in keeper.told[-1][1]
    assert cluster.requests == {}


@looptime
async def test_a_pending_request_is_replaced_after_an_hour():
    """And deleted."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(4000))
    await asyncio.sleep(3700)
    assert (len(cluster.created), len(cluster.requests)) == (2, 1)
    await running


@looptime
async def test_a_deleted_request_is_created_again():
    """The cleaner of old requests, or an administrator, may delete it."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(60))
    await asyncio.sleep(10)
    (name,) = cluster.requests
    cluster.server.remove("certificatesigningrequests", name)
    await asyncio.sleep(10)
    (again,) = cluster.requests
    cluster.issue(again)
    await running
    assert len(keeper.installed) == 1


@looptime
async def test_a_broken_watch_is_restarted():
    """Changes in between are read."""
    cluster = FakeCluster()
    cluster.errors["watch"] = [ConnectionFailed("broken")]
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(60))
    await asyncio.sleep(1)
    (name,) = cluster.requests
    cluster.issue(name)
    await running
    assert (len(keeper.installed), len(cluster.created)) == (1, 1)


@looptime
@pytest.mark.parametrize("error", [Forbidden("no", code=403), ConnectionFailed("down")])
async def test_a_refusing_cluster_is_asked_again(error):
    """Missing rights and outages may end; no request is made that cannot be watched."""
    cluster = FakeCluster()
    cluster.errors["create"] = [error, error]
    cluster.on_create = cluster.issue
    keeper = Keeper(cluster)
    await keeper.run_for(60)
    assert (len(cluster.created), len(keeper.installed)) == (3, 1)
    assert [reason for reason, _ in keeper.told] == ["ServingCertificateFailed"] * 2


@looptime
async def test_an_unusable_certificate_is_requested_again():
    """The reloader refuses a certificate for another key, and keeps the old one."""
    cluster = FakeCluster()
    cluster.on_create = lambda name: cluster.issue(name, GOOD)
    refused: list[ConfigError] = []
    reloader = CertificateReloader.from_pair(self_signed("before"))

    def install(issued: Issued) -> None:
        try:
            reloader.replace(issued.pair)
        except ConfigError as error:
            refused.append(error)
            raise

    keeper = Keeper(cluster, install=install)
    await keeper.run_for(10)
    assert {reason for reason, _ in keeper.told} == {"ServingCertificateFailed"}
    assert len(refused) > 1


@looptime
async def test_certificates_are_renewed_between_70_and_90_per_cent_of_their_life():
    """Each before it expires, and with another key."""
    cluster = FakeCluster()
    cluster.on_create, cluster.life = cluster.issue, WEEK
    keeper = Keeper(cluster)
    await keeper.run_for(3 * WEEK.total_seconds())
    times = [time for time, _ in keeper.installed]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(gaps) >= 3
    assert all(0.7 <= gap / WEEK.total_seconds() <= 0.9 for gap in gaps)
    assert len({issued.pair.key for _, issued in keeper.installed}) == len(keeper.installed)


@looptime
async def test_a_valid_certificate_is_kept_until_it_is_due():
    """A restarted lower cluster within the process does not request another one."""
    cluster = FakeCluster()
    cluster.on_create = cluster.issue
    at_hand = Issued(self_signed("kept"), START + timedelta(hours=5))
    keeper = Keeper(cluster, issued=at_hand)
    await keeper.run_for(6 * 3600)
    ((time, _),) = cluster.created
    assert time == pytest.approx(5 * 3600, abs=2)


@looptime
async def test_a_process_deletes_its_request_at_its_end():
    """Its key is lost, so an approval would be useless."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    await keeper.run_for(10)
    assert (
        len(cluster.created),
        len(cluster.asked("delete", "certificatesigningrequests")),
        cluster.requests,
    ) == (1, 1, {})


@looptime
async def test_an_unexpected_error_is_logged_and_retried():
    """Otherwise the task would end unnoticed, and the certificate expire."""
    cluster = FakeCluster()
    cluster.on_create = cluster.issue
    faults: Any = [RuntimeError("odd")]
    cluster.errors["create"] = faults
    keeper = Keeper(cluster)
    with capture_logs() as logs:
        await keeper.run_for(60)
    assert len(keeper.installed) == 1
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["no serving certificate"]
