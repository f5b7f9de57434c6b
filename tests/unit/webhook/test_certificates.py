"""Certificates that the webhook manages, virtual nodes of volumes, webhook configurations, flags."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime.client.cache_budget import CacheBudget
from controller_runtime.client.client import ObjectList
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import AlreadyExists, ConfigError, Conflict, Forbidden
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.tls.reloader import KeyPair, expiry
from webhook import certificates, flags, manifests
from webhook.mutation import volumes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("webhook.ns.svc", "10.0.0.1")


def _created(now: datetime = NOW) -> certificates.Certificates:
    created = certificates.renewed(None, HOSTS, now=now)
    assert created is not None
    return created


def _signed_by(leaf: bytes, ca: bytes) -> bool:
    certificate, authority = x509.load_pem_x509_certificate(leaf), x509.load_pem_x509_certificate(ca)
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - whatever is wrong, it is not signed by it
        return False
    return True


def test_creates_ca_and_serving_certificate_for_all_hosts():
    created = _created()
    assert _signed_by(created.serving.certificate, created.ca.certificate)
    assert expiry(created.serving.certificate) - NOW <= certificates.SERVING_VALIDITY
    assert certificates.renewed(created, HOSTS, now=NOW) is None


def test_reads_written_secret_and_ignores_invalid_ones():
    created = _created()
    assert certificates.read(created.data()) == created
    assert certificates.read(None) is None
    assert certificates.read({**created.data(), "tls.crt": base64.b64encode(b"x").decode()}) is None
    assert certificates.read({**created.data(), "ca.key": 7}) is None


def test_renews_serving_certificate_at_third_of_validity_by_same_ca():
    created = _created()
    later = NOW + timedelta(days=61)
    fresh = certificates.renewed(created, HOSTS, now=later)
    assert fresh is not None
    assert fresh.bundle == created.bundle
    assert expiry(fresh.serving.certificate) > expiry(created.serving.certificate)


def test_renews_serving_certificate_for_new_host():
    fresh = certificates.renewed(_created(), [*HOSTS, "new.example"], now=NOW)
    assert fresh is not None
    assert certificates.renewed(fresh, HOSTS, now=NOW) is None


def test_bundles_new_ca_with_old_one():
    created = _created()
    fresh = certificates.renewed(created, HOSTS, now=NOW + timedelta(days=2500))
    assert fresh is not None
    assert fresh.ca != created.ca
    assert len(x509.load_pem_x509_certificates(fresh.bundle)) == 2
    assert fresh.bundle.endswith(created.ca.certificate)
    assert _signed_by(fresh.serving.certificate, fresh.ca.certificate)
    read = certificates.read(fresh.data())
    assert read is not None
    assert read.ca.certificate == fresh.ca.certificate


def _claim(**spec: str) -> dict:
    return {"metadata": {"annotations": {}}, "spec": spec}


def test_volume_affinity_precedes_selected_node():
    """Real upper nodes are ignored."""
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["vn-a", "real"]}]
    }
    bound = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}
    found = volumes.pinned_to(_claim(volumeName="pv"), volume=lambda _name: bound, virtual_nodes={"vn-a"})
    assert found == ["vn-a"]
    selected = _claim()
    selected["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "vn-a"
    assert volumes.pinned_to(selected, volume=lambda _name: None, virtual_nodes={"vn-a"}) == ["vn-a"]
    assert volumes.pinned_to(selected, volume=lambda _name: None, virtual_nodes={"vn-b"}) == []
    assert volumes.pinned_to(_claim(volumeName="pv"), volume=lambda _name: None, virtual_nodes={"vn-a"}) == []


def test_configurations_exclude_kube_system_and_unlabelled_pods():
    config = manifests.by_service("ns", "svc", "/mutate", b"ca")
    (pods,) = manifests.mutating(config)["webhooks"]
    (workloads,) = manifests.validating(config)["webhooks"]
    for webhook in (pods, workloads):
        (expression,) = webhook["namespaceSelector"]["matchExpressions"]
        assert (expression["operator"], expression["values"]) == ("NotIn", ["kube-system"])
        assert webhook["sideEffects"] == "None"
    assert pods["objectSelector"]["matchLabels"] == {"virtual-pod": "true"}
    assert (pods["failurePolicy"], workloads["failurePolicy"]) == ("Fail", "Ignore")
    assert manifests.by_url("https://h:1/", "/mutate", b"ca")["url"] == "https://h:1/mutate"


def test_accepts_flags_of_tensile_kube():
    options = flags.parse(
        ["--address=127.0.0.1", "--port=9443", "--tlscert=c", "--tlskey=k", "--CA=ca", "--kubeconfig=f",
         "--master=https://m", "--incluster=false", "--ignore-selector-keys=clusterID,zone", "--klog.v=4"],
        {},
    )  # fmt: skip
    assert (options.address, options.port, options.client_ca) == ("127.0.0.1", 9443, "ca")
    assert options.surroundings.ignore_keys == ("clusterID", "zone")
    assert options.tlscert
    assert options.klog.verbosity == 4


def test_adds_dns_names_of_service_to_hosts():
    options = flags.parse(["--register", "--service-name=hook", "--namespace=ns"], {})
    assert "hook.ns.svc" in options.hosts
    assert not options.tlscert


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--tlscert=c"], "--tlskey"),
        (["--port=70000"], "--port"),
        (["--register"], "--service-name"),
        (["--register", "--url=http://x"], "https"),
    ],
)
def test_flag_errors_name_the_flag(arguments, flag):
    with pytest.raises(ConfigError, match=flag):
        flags.parse(arguments, {})


class _Cluster:
    """One Secret and the announced bundles; watch events are delivered only while ``delivers`` is set."""

    cluster = "upper"

    def __init__(self) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.secret: dict | None = None
        self.log: list[tuple[str, bytes]] = []
        self.delivers = asyncio.Event()
        self.delivers.set()
        self._events: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._versions = itertools.count(1)

    async def list(self, *_: object, **__: object) -> ObjectList:
        return ObjectList([from_dict(self.secret)] if self.secret else [], "1")

    async def watch_batches(self, *_: object, **__: object):
        while True:
            event = await self._events.get()
            await self.delivers.wait()
            yield [event]

    async def create(self, _resource: object, body: dict, **_: object) -> dict:
        if self.secret is not None:
            raise AlreadyExists("exists", code=409)
        return self._store(body, "ADDED")

    async def update(self, _resource: object, body: dict, **_: object) -> dict:
        if (
            self.secret is None
            or body["metadata"]["resourceVersion"] != self.secret["metadata"]["resourceVersion"]
        ):
            raise Conflict("changed", code=409)
        return self._store(body, "MODIFIED")

    def delete(self) -> None:
        assert self.secret is not None
        self._events.put_nowait(WatchEvent("DELETED", from_dict(self.secret)))
        self.secret = None

    async def announce(self, bundle: bytes) -> None:
        await asyncio.sleep(0.01)
        self.log.append(("announced", bundle))

    def _store(self, body: dict, kind: str) -> dict:
        metadata = {"uid": "s", **body["metadata"], "resourceVersion": str(next(self._versions))}
        self.secret = {"apiVersion": "v1", "kind": "Secret", **body, "metadata": metadata}
        self.log.append(("written", base64.b64decode(body["data"]["ca.crt"])))
        self._events.put_nowait(WatchEvent(kind, from_dict(self.secret)))
        return self.secret


@contextlib.asynccontextmanager
async def _keeping(cluster: _Cluster, clock: list[datetime]):
    keeper = certificates.CertificateKeeper(
        cluster,  # type: ignore[arg-type]
        namespace="ns",
        name="s",
        hosts=HOSTS,
        announce=cluster.announce,
        now=lambda: clock[0],
    )
    served: list[KeyPair] = []
    tasks = [asyncio.create_task(keeper.follow(served.append)), asyncio.create_task(keeper.keep())]
    try:
        yield keeper, served
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.looptime
async def test_keeps_served_certificate_trusted_after_secret_is_deleted():
    cluster = _Cluster()
    async with _keeping(cluster, [NOW]) as (_, served):
        await asyncio.sleep(60)
        (first,) = served
        cluster.log.clear()
        cluster.delete()
        await asyncio.sleep(60)
    assert [action for action, _ in cluster.log][:2] == ["announced", "written"]
    for _, bundle in cluster.log:
        authorities = x509.load_pem_x509_certificates(bundle)
        assert any(
            _signed_by(first.certificate, authority.public_bytes(Encoding.PEM)) for authority in authorities
        )
    assert len(served) == 2


@pytest.mark.looptime
async def test_fills_secret_that_the_chart_created_empty(monkeypatch: pytest.MonkeyPatch):
    """The chart grants no ``create``; the Secret exists without data and is updated."""
    cluster = _Cluster()
    cluster.secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": "s",
            "namespace": "ns",
            "uid": "s",
            "resourceVersion": "0",
            "labels": {"a": "b"},
        },
    }

    async def forbidden(*_: object, **__: object) -> dict:
        raise Forbidden("create", code=403)

    monkeypatch.setattr(cluster, "create", forbidden)
    async with _keeping(cluster, [NOW]) as (_, served):
        await asyncio.sleep(60)
    assert len(served) == 1
    assert cluster.secret["metadata"]["labels"] == {"a": "b"}


@pytest.mark.looptime
async def test_delayed_watch_causes_no_second_ca():
    """Otherwise another CA would replace the announced one that is in use."""
    cluster, clock = _Cluster(), [NOW]
    async with _keeping(cluster, clock) as (keeper, served):
        await asyncio.sleep(60)
        clock[0] = NOW + timedelta(days=2500)
        cluster.log.clear()
        cluster.delivers.clear()
        for _ in range(10):
            keeper.recheck()
            await asyncio.sleep(2)
        cluster.delivers.set()
        await asyncio.sleep(60)
        assert [action for action, _ in cluster.log].count("written") == 1
        newest = served[-1].certificate
        for _, bundle in cluster.log:
            authorities = x509.load_pem_x509_certificates(bundle)
            assert any(_signed_by(newest, authority.public_bytes(Encoding.PEM)) for authority in authorities)
