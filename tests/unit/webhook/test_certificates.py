"""Certificates that the webhook looks after, where its volumes are, and its command line."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller_runtime.client.client import ObjectList
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import AlreadyExists, ConfigError, Conflict, Forbidden
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.tls.reloader import KeyPair, expiry
from webhook import certificates, flags, manifests
from webhook.mutation import volumes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("webhook.ns.svc", "10.0.0.1")


def _made(now: datetime = NOW) -> certificates.Certificates:
    made = certificates.renewed(None, HOSTS, now=now)
    assert made is not None
    return made


def _signed_by(leaf: bytes, ca: bytes) -> bool:
    certificate, authority = x509.load_pem_x509_certificate(leaf), x509.load_pem_x509_certificate(ca)
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - whatever is wrong, it is not signed by it
        return False
    return True


def test_what_is_missing_is_made():
    """A CA of ten years, a serving certificate of ninety days for all our names."""
    made = _made()
    assert _signed_by(made.serving.certificate, made.ca.certificate)
    assert expiry(made.serving.certificate) - NOW <= certificates.SERVING_VALIDITY
    assert certificates.renewed(made, HOSTS, now=NOW) is None


def test_a_secret_holds_it_all_and_rubbish_is_nothing():
    """What is written is read again; anything else is made anew."""
    made = _made()
    assert certificates.read(made.data()) == made
    assert certificates.read(None) is None
    assert certificates.read({**made.data(), "tls.crt": base64.b64encode(b"x").decode()}) is None
    assert certificates.read({**made.data(), "ca.key": 7}) is None


def test_a_serving_certificate_is_renewed_in_good_time():
    """With a third of its life left, by the same CA."""
    made = _made()
    later = NOW + timedelta(days=61)
    fresh = certificates.renewed(made, HOSTS, now=later)
    assert fresh is not None
    assert fresh.bundle == made.bundle
    assert expiry(fresh.serving.certificate) > expiry(made.serving.certificate)


def test_another_name_is_reason_enough():
    """A certificate that does not cover a name would be refused under it."""
    fresh = certificates.renewed(_made(), [*HOSTS, "new.example"], now=NOW)
    assert fresh is not None
    assert certificates.renewed(fresh, HOSTS, now=NOW) is None


def test_a_new_ca_is_announced_beside_the_old_one():
    """Until everybody has heard of it both are trusted."""
    made = _made()
    fresh = certificates.renewed(made, HOSTS, now=NOW + timedelta(days=2500))
    assert fresh is not None
    assert fresh.ca != made.ca
    assert len(x509.load_pem_x509_certificates(fresh.bundle)) == 2
    assert fresh.bundle.endswith(made.ca.certificate)
    assert _signed_by(fresh.serving.certificate, fresh.ca.certificate)
    read = certificates.read(fresh.data())
    assert read is not None
    assert read.ca.certificate == fresh.ca.certificate


def _claim(**spec: str) -> dict:
    return {"metadata": {"annotations": {}}, "spec": spec}


def test_where_a_claims_volume_can_be_reached():
    """By the volume's node affinity, else by the node that the scheduler has chosen; real nodes say nothing."""
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


def test_kube_system_never_depends_on_us():
    """Both configurations leave it out; only labelled pods are asked about, and those must be."""
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


def test_tensile_kubes_flags_are_understood():
    """Go's spelling, klog's flags included."""
    options = flags.parse(
        ["--address=127.0.0.1", "--port=9443", "--tlscert=c", "--tlskey=k", "--CA=ca", "--kubeconfig=f",
         "--master=https://m", "--incluster=false", "--ignore-selector-keys=clusterID,zone", "--klog.v=4"],
        {},
    )  # fmt: skip
    assert (options.address, options.port, options.client_ca) == ("127.0.0.1", 9443, "ca")
    assert options.ignore_keys == ("clusterID", "zone")
    assert not options.self_managed
    assert options.klog.verbosity == 4


def test_a_service_brings_its_names():
    """Those that the API server may verify."""
    options = flags.parse(["--register", "--service-name=hook", "--namespace=ns"], {})
    assert "hook.ns.svc" in options.hosts
    assert options.self_managed


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tlscert=c"], "--tlskey"),
        (["--port=70000"], "--port"),
        (["--register"], "--service-name"),
        (["--register", "--url=http://x"], "https"),
    ],
)
def test_contradictions_name_the_flags(arguments, told):
    """One line, and what to do."""
    with pytest.raises(ConfigError, match=told):
        flags.parse(arguments, {})


class _Cluster:
    """One Secret, and what is announced; watchers are told only when ``tell`` is set."""

    cluster = "upper"

    def __init__(self) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.secret: dict | None = None
        self.log: list[tuple[str, bytes]] = []
        self.tell = asyncio.Event()
        self.tell.set()
        self._events: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._versions = itertools.count(1)

    async def list(self, *_: object, **__: object) -> ObjectList:
        return ObjectList([from_dict(self.secret)] if self.secret else [], "1")

    async def watch_batches(self, *_: object, **__: object):
        while True:
            event = await self._events.get()
            await self.tell.wait()
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
async def test_a_secret_that_somebody_deletes_ends_no_trust():
    """What is still served goes on being trusted until its successor is."""
    cluster = _Cluster()
    async with _keeping(cluster, [NOW]) as (_, served):
        await asyncio.sleep(60)
        (first,) = served
        cluster.log.clear()
        cluster.delete()
        await asyncio.sleep(60)
    assert [what for what, _ in cluster.log][:2] == ["announced", "written"]
    for _, bundle in cluster.log:
        authorities = x509.load_pem_x509_certificates(bundle)
        assert any(_signed_by(first.certificate, one.public_bytes(Encoding.PEM)) for one in authorities)
    assert len(served) == 2


@pytest.mark.looptime
async def test_fills_secret_that_the_chart_created_empty(monkeypatch: pytest.MonkeyPatch):
    """The chart grants no `create`: the Secret exists without data and is updated."""
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
async def test_a_watch_that_is_behind_makes_no_third_ca():
    """What we have written counts before we see it: another CA would be announced in the place of the one in use."""
    cluster, clock = _Cluster(), [NOW]
    async with _keeping(cluster, clock) as (keeper, served):
        await asyncio.sleep(60)
        clock[0] = NOW + timedelta(days=2500)
        cluster.log.clear()
        cluster.tell.clear()
        for _ in range(10):
            keeper.recheck()
            await asyncio.sleep(2)
        cluster.tell.set()
        await asyncio.sleep(60)
        assert [what for what, _ in cluster.log].count("written") == 1
        newest = served[-1].certificate
        for _, bundle in cluster.log:
            authorities = x509.load_pem_x509_certificates(bundle)
            assert any(_signed_by(newest, one.public_bytes(Encoding.PEM)) for one in authorities)
