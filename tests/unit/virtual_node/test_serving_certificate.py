"""Serving certificates by CSR: what is asked for, what comes of it, and when it is asked for again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from controller_runtime.certificates import CertificateReloader, make_ca, self_signed
from controller_runtime.errors import ApiError, ConfigError, Conflict, ConnectionFailed, Forbidden, NotFound
from controller_runtime.objects import WatchEvent, from_dict
from virtual_node import certificate_request, config, flags, manifests, rights
from virtual_node.certificate_request import RequestFailed
from virtual_node.serving_certificate import Issued, ServingCertificate

looptime = pytest.mark.looptime
START = datetime(2026, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
YEAR = timedelta(days=365)
ADDRESSES = [
    {"type": "InternalIP", "address": "10.0.0.7"},
    {"type": "Hostname", "address": "vn-a"},
    {"type": "ExternalIP", "address": "2001:db8::7"},
]
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)
CA = make_ca("cluster-ca", now=START)


def now() -> datetime:
    """The calendar of the loop's virtual time."""
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def certify(request: bytes, *, at: datetime, life: timedelta = YEAR) -> bytes:
    """What a signer makes of a PKCS#10 request: backdated by five minutes, for its very key."""
    asked = x509.load_pem_x509_csr(request)
    issuer = x509.load_pem_x509_certificate(CA.certificate)
    key = serialization.load_pem_private_key(CA.key, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return (
        x509.CertificateBuilder()
        .subject_name(asked.subject)
        .issuer_name(issuer.subject)
        .public_key(asked.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(minutes=5))
        .not_valid_after(at + life)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


class FakeCluster:
    """The CertificateSigningRequests of an upper cluster, with a signer that does as it is told."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.created: list[tuple[float, dict[str, Any], Mapping[str, str]]] = []
        self.deleted: list[str] = []
        self.approvals: list[str] = []
        self.on_create: Callable[[str], None] = lambda _name: None
        self.on_approve: Callable[[str], None] = self.issue
        self.create_errors: list[ApiError] = []
        self.update_errors: list[ApiError] = []
        self.watch_errors: list[ApiError] = []
        self.life = YEAR
        self._version = 0
        self._watchers: list[asyncio.Queue[WatchEvent]] = []

    async def create(
        self, _resource: Any, body: Mapping[str, Any], *, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        name = body["metadata"]["name"]
        self.created.append((asyncio.get_running_loop().time(), dict(body), headers))
        if self.create_errors:
            raise self.create_errors.pop(0)
        metadata = {"name": name, "uid": f"uid-{name}"}
        made = self._put({**body, "metadata": metadata, "status": {}})
        self.on_create(name)
        return made

    async def get(self, _resource: Any, name: str) -> dict[str, Any]:
        if name not in self.requests:
            raise NotFound("gone", code=404)
        return self.requests[name]

    async def update(self, _resource: Any, body: Mapping[str, Any], *, subresource: str) -> dict[str, Any]:
        assert subresource == "approval"
        if self.update_errors:
            raise self.update_errors.pop(0)
        name = body["metadata"]["name"]
        self.approvals.append(name)
        answer = self._put(dict(body))
        self.on_approve(name)
        return answer

    async def delete(self, _resource: Any, name: str, *, uid: str | None) -> None:
        found = self.requests.pop(name, None)
        if found is None:
            raise NotFound("gone", code=404)
        assert uid in {None, found["metadata"]["uid"]}
        self.deleted.append(name)
        self._tell("DELETED", found)

    async def watch(
        self, _resource: Any, *, field_selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        name = field_selector.removeprefix("metadata.name=")
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self._watchers.append(queue)
        try:
            found = self.requests.get(name)
            if found is not None and int(found["metadata"]["resourceVersion"]) > int(resource_version):
                yield WatchEvent("MODIFIED", from_dict(found))
            while True:
                event = await queue.get()
                if event.object.name == name:
                    yield event
        finally:
            self._watchers.remove(queue)

    def issue(self, name: str, certificate: bytes | None = None) -> None:
        """Sign a request, or pretend to."""
        found = self.requests[name]
        asked = base64.b64decode(found["spec"]["request"])
        made = certificate if certificate is not None else certify(asked, at=now(), life=self.life)
        self.change(name, certificate=base64.b64encode(made).decode())

    def condition(self, name: str, kind: str, message: str = "") -> None:
        """Approve, deny or fail a request."""
        before = self.requests[name].get("status", {}).get("conditions", [])
        self.change(name, conditions=[*before, {"type": kind, "status": "True", "message": message}])

    def change(self, name: str, **status: Any) -> None:
        """Write a request's status and tell those who watch."""
        found = self.requests[name]
        self._tell("MODIFIED", self._put({**found, "status": {**found.get("status", {}), **status}}))

    def _put(self, whole: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        stored = {**whole, "metadata": {**whole["metadata"], "resourceVersion": str(self._version)}}
        self.requests[stored["metadata"]["name"]] = stored
        return stored

    def _tell(self, kind: str, whole: dict[str, Any]) -> None:
        for queue in self._watchers:
            queue.put_nowait(WatchEvent(kind, from_dict(whole)))


class Keeper:
    """A ServingCertificate under test, and what it did."""

    def __init__(self, cluster: FakeCluster, **options: Any) -> None:
        self.installed: list[tuple[float, Issued]] = []
        self.told: list[tuple[str, str]] = []
        client: Any = cluster
        self.subject = ServingCertificate(
            client,
            "vn-a",
            ADDRESSES,
            install=options.pop("install", self._install),
            tell=lambda reason, message: self.told.append((reason, message)),
            now=now,
            **options,
        )

    def _install(self, issued: Issued) -> None:
        self.installed.append((asyncio.get_running_loop().time(), issued))

    async def run_for(self, seconds: float) -> None:
        """Run it for a while of virtual time, then stop it as a process that ends does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.subject.run()


def _names_of(pem: bytes) -> x509.SubjectAlternativeName:
    extensions = x509.load_pem_x509_csr(pem).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_a_request_names_the_node_and_all_its_addresses():
    """Subject and alternative names are those that the signer kubernetes.io/kubelet-serving insists on."""
    pem = certificate_request.signing_request("vn-a", ADDRESSES, EC_KEY)
    subject = x509.load_pem_x509_csr(pem).subject
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "system:node:vn-a"
    ]
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "system:nodes"
    ]
    names = _names_of(pem)
    assert names.get_values_for_type(x509.DNSName) == ["vn-a"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.0.0.7"),
        ipaddress.ip_address("2001:db8::7"),
    ]
    assert x509.load_pem_x509_csr(pem).is_signature_valid


def test_an_address_that_is_there_twice_is_asked_for_once():
    """A node whose name is its address, or whose inner address is the outer one, makes no double names."""
    twice = [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "ExternalIP", "address": "10.0.0.7"}]
    assert len(list(_names_of(certificate_request.signing_request("vn-a", twice, EC_KEY)))) == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (EC_KEY, ["digital signature", "server auth"]),
        (RSA_KEY, ["digital signature", "key encipherment", "server auth"]),
    ],
    ids=["ecdsa", "rsa"],
)
def test_usages_follow_the_key(key, expected):
    """Only RSA keys encipher; the signer takes nothing more and nothing less."""
    made = certificate_request.request_object("csr-1", "vn-a", ADDRESSES, key)
    assert made["spec"]["usages"] == expected
    assert made["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    assert base64.b64decode(made["spec"]["request"]).startswith(b"-----BEGIN CERTIFICATE REQUEST-----")


@pytest.mark.parametrize(("node", "addresses"), [("n" * 53, ADDRESSES), ("vn-a", [])])
def test_what_no_signer_would_take_is_not_sent(node, addresses):
    """A name too long for a certificate and a node without addresses are errors here already."""
    with pytest.raises(ValueError):
        certificate_request.signing_request(node, addresses, EC_KEY)


GOOD = certify(certificate_request.signing_request("vn-a", ADDRESSES, EC_KEY), at=START)


def _status(**fields: Any) -> dict[str, Any]:
    return {"status": fields}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, None),
        (_status(conditions=[{"type": "Approved", "status": "True"}]), None),
        (_status(conditions=[{"type": "Denied", "status": "False"}]), None),
        (_status(certificate=base64.b64encode(GOOD).decode()), GOOD),
    ],
    ids=["new", "approved", "not denied after all", "issued"],
)
def test_a_request_has_a_certificate_or_not_yet(request_, expected):
    """Only an issued certificate counts; approval alone is no certificate."""
    assert certificate_request.certificate_of(request_) == expected


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            _status(conditions=[{"type": "Denied", "status": "True", "message": "not here"}]),
            "denied: not here",
        ),
        (_status(conditions=[{"type": "Failed", "status": "True", "reason": "Bad"}]), "failed: Bad"),
        (_status(conditions=[{"type": "Denied", "status": "True"}]), "denied: no reason given"),
        (_status(certificate=base64.b64encode(b"rubbish").decode()), "not a certificate"),
        (_status(certificate="!"), "not a certificate"),
    ],
)
def test_a_request_that_is_over_says_why(request_, message):
    """Denied, failed or answered with rubbish: no certificate will come of it."""
    with pytest.raises(RequestFailed, match=message):
        certificate_request.certificate_of(request_)


@pytest.mark.parametrize(
    ("life", "share", "expected"),
    [
        (YEAR, 0.7, YEAR * 0.7),
        (YEAR, 0.9, YEAR * 0.9),
        (timedelta(minutes=1), 0.7, timedelta(seconds=42)),
    ],
)
def test_rotation_comes_at_a_share_of_the_life_that_is_left(life, share, expected):
    """The five minutes by which a signer backdates do not make a short certificate due at once."""
    certificate = certify(certificate_request.signing_request("vn-a", ADDRESSES, EC_KEY), at=START, life=life)
    assert certificate_request.rotation_time(certificate, now=START, share=share) == START + expected


def test_a_certificate_that_has_ended_is_of_no_use():
    """A signer with a wrong clock is a failure to be tried again, not a certificate to be served."""
    with pytest.raises(RequestFailed, match="ended"):
        certificate_request.rotation_time(GOOD, now=START + 2 * YEAR, share=0.8)


@looptime
async def test_a_certificate_is_asked_for_as_the_node():
    """The request is impersonated, and what is installed is what was issued, with its key."""
    cluster = FakeCluster()
    cluster.on_create = cluster.issue
    keeper = Keeper(cluster)
    await keeper.run_for(60)
    ((_, _, headers),) = cluster.created
    assert headers == {"Impersonate-User": "system:node:vn-a", "Impersonate-Group": "system:nodes"}
    ((_, issued),) = keeper.installed
    reloader = CertificateReloader.from_pair(self_signed("before"))
    reloader.replace(issued.pair)
    assert cluster.requests == {}


@looptime
async def test_without_our_approval_people_are_told_what_to_run():
    """Until somebody approves, one log line and one Event carry the command, and nothing is installed."""
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
async def test_our_own_approval_survives_a_conflict():
    """Somebody who wrote the request first costs one more try."""
    cluster = FakeCluster()
    cluster.update_errors = [Conflict("changed", code=409)]
    keeper = Keeper(cluster, approve=True)
    await keeper.run_for(60)
    assert len(cluster.approvals) == len(keeper.installed) == 1
    assert keeper.told == []


@looptime
async def test_an_approval_that_is_refused_is_left_to_people():
    """Without the right to approve, the request stays and people are told."""
    cluster = FakeCluster()
    cluster.update_errors = [Forbidden("no", code=403)]
    keeper = Keeper(cluster, approve=True)
    await keeper.run_for(60)
    assert [reason for reason, _ in keeper.told] == ["ServingCertificatePending"]
    assert len(cluster.created) == 1


@looptime
@pytest.mark.parametrize("kind", ["Denied", "Failed"])
async def test_a_refused_request_is_made_again_ever_later(kind):
    """Pauses double from two seconds to ten minutes, and only the last request is there to be looked at."""
    cluster = FakeCluster()
    cluster.on_create = lambda name: cluster.condition(name, kind, "not here")
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(7200))
    await asyncio.sleep(7000)
    assert len(cluster.requests) == 1
    await running
    times = [time for time, _, _ in cluster.created]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[0] == pytest.approx(2.1, abs=0.2)
    assert all(600 <= pause <= 661 for pause in pauses[9:])
    assert "not here" in keeper.told[-1][1]
    assert cluster.requests == {}


@looptime
async def test_a_request_that_nobody_answers_is_replaced():
    """After an hour a new one takes its place; the old one is removed, not left to pile up."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(4000))
    await asyncio.sleep(3700)
    assert (len(cluster.created), len(cluster.requests)) == (2, 1)
    await running


@looptime
async def test_a_request_that_somebody_removes_is_made_again():
    """The cleaner of old requests, or a person, does not leave the node without a certificate."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(60))
    await asyncio.sleep(10)
    (name,) = cluster.requests
    await cluster.delete(None, name, uid=None)
    await asyncio.sleep(10)
    (again,) = cluster.requests
    cluster.issue(again)
    await running
    assert len(keeper.installed) == 1


@looptime
async def test_a_watch_that_breaks_is_begun_again():
    """What happened in between is read, not missed."""
    cluster = FakeCluster()
    cluster.watch_errors = [ConnectionFailed("broken")]
    keeper = Keeper(cluster)
    running = asyncio.create_task(keeper.run_for(60))
    await asyncio.sleep(1)
    (name,) = cluster.requests
    cluster.issue(name)
    await running
    assert (len(keeper.installed), len(cluster.created)) == (1, 1)


@looptime
@pytest.mark.parametrize("error", [Forbidden("no", code=403), ConnectionFailed("down")])
async def test_a_cluster_that_refuses_is_asked_again(error):
    """Missing rights and outages end when they end; no request is made that nobody follows."""
    cluster = FakeCluster()
    cluster.create_errors = [error, error]
    cluster.on_create = cluster.issue
    keeper = Keeper(cluster)
    await keeper.run_for(60)
    assert (len(cluster.created), len(keeper.installed)) == (3, 1)
    assert [reason for reason, _ in keeper.told] == ["ServingCertificateFailed"] * 2


@looptime
async def test_what_cannot_be_served_is_asked_for_again():
    """A certificate for another key is refused by the reloader, which keeps the old one."""
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
    """Each one is replaced before it ends, week after week, with another key every time."""
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
async def test_a_certificate_at_hand_is_good_until_it_is_due():
    """A lower cluster that starts again within the process does not ask for another one."""
    cluster = FakeCluster()
    cluster.on_create = cluster.issue
    at_hand = Issued(self_signed("kept"), START + timedelta(hours=5))
    keeper = Keeper(cluster, issued=at_hand)
    await keeper.run_for(6 * 3600)
    ((time, _, _),) = cluster.created
    assert time == pytest.approx(5 * 3600, abs=2)


@looptime
async def test_a_process_that_ends_removes_its_request():
    """What nobody holds the key of any more is not left for people to approve."""
    cluster = FakeCluster()
    keeper = Keeper(cluster)
    await keeper.run_for(10)
    assert (len(cluster.created), len(cluster.deleted), cluster.requests) == (1, 1, {})


@pytest.mark.parametrize(
    ("kubelet", "source"),
    [
        ({}, "SelfSigned"),
        ({"tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}, "Files"),
        ({"servingCertificate": "Files", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}, "Files"),
        ({"servingCertificate": "SelfSigned"}, "SelfSigned"),
        ({"servingCertificate": "CSR", "approveServingCertificate": True}, "CSR"),
    ],
)
def test_where_the_certificate_comes_from(kubelet, source):
    """Files given are files used; otherwise it is self-signed, unless the configuration says CSR."""
    assert config.parse(_document(kubelet)).kubelet.certificate_source == source


@pytest.mark.parametrize(
    ("kubelet", "message"),
    [
        ({"servingCertificate": "Files"}, "kubelet.servingCertificate: Files needs tlsCertFile"),
        (
            {"servingCertificate": "CSR", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"},
            "kubelet.servingCertificate: CSR contradicts tlsCertFile",
        ),
        (
            {"servingCertificate": "SelfSigned", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"},
            "kubelet.servingCertificate: SelfSigned contradicts tlsCertFile",
        ),
        ({"approveServingCertificate": True}, "kubelet.approveServingCertificate: needs"),
        ({"servingCertificate": "Magic"}, "kubelet.servingCertificate"),
    ],
)
def test_contradictions_are_named(kubelet, message):
    """A wrong configuration is refused with the field's name."""
    with pytest.raises(ConfigError, match=message):
        config.parse(_document(kubelet))


def test_a_node_name_too_long_for_a_certificate_is_named():
    """With CSR only; a self-signed certificate's common name may be cut."""
    name = "n" * 53
    assert config.parse(_document({}, node=name)).kubelet.certificate_source == "SelfSigned"
    with pytest.raises(ConfigError, match=name):
        config.parse(_document({"servingCertificate": "CSR"}, node=name))


def _document(kubelet: Mapping[str, Any], *, node: str = "vn-a") -> str:
    return json.dumps(
        {
            "apiVersion": config.API_VERSION,
            "kind": config.KIND,
            "kubelet": kubelet,
            "clusters": [{"name": "a", "nodeName": node, "kubeconfig": "/k"}],
        }
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, ("SelfSigned", False)),
        (["--rotate-server-certificates"], {}, ("CSR", False)),
        (["--rotate-server-certificates=false"], {}, ("SelfSigned", False)),
        (["--rotate-server-certificates", "--approve-server-certificates"], {}, ("CSR", True)),
        ([], {"APISERVER_CERT_LOCATION": "/c", "APISERVER_KEY_LOCATION": "/k"}, ("Files", False)),
    ],
)
def test_flags_choose_the_source(arguments, environment, expected):
    """The kubelet's own flag asks for certificates by CSR."""
    kubelet = flags.parse(["--client-kubeconfig=/k", *arguments], environment).config.kubelet
    assert (kubelet.certificate_source, kubelet.approve_serving_certificate) == expected


def test_flags_and_environment_that_contradict_are_named():
    """Files from the environment and --rotate-server-certificates exclude one another."""
    environment = {"APISERVER_CERT_LOCATION": "/c", "APISERVER_KEY_LOCATION": "/k"}
    with pytest.raises(ConfigError, match=r"kubelet\.servingCertificate: CSR contradicts tlsCertFile"):
        flags.parse(["--client-kubeconfig=/k", "--rotate-server-certificates"], environment)


def test_a_flag_that_contradicts_the_file_is_named(tmp_path):
    """What a flag adds to --config is validated together with it."""
    file = tmp_path / "config.yaml"
    file.write_text(_document({"tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}))
    with pytest.raises(ConfigError, match=r"kubelet\.servingCertificate"):
        flags.parse(["--config", str(file), "--rotate-server-certificates"], {})


@pytest.mark.parametrize("approve", [False, True])
def test_rights_are_for_our_own_nodes_and_no_others(approve):
    """Impersonation is granted by name, and approval only where it is configured."""
    table = rights.upper_csr(["vn-b", "vn-a"], approve=approve)
    rules = manifests.cluster_role(table)["rules"]
    named = {rule["resources"][0]: rule.get("resourceNames") for rule in rules}
    assert named["users"] == ["system:node:vn-a", "system:node:vn-b"]
    assert named["groups"] == ["system:nodes"]
    assert ("signers" in named) == approve
    asked = [attributes for right in table for attributes in right.attributes()]
    assert {"verb": "impersonate", "group": "", "resource": "users", "name": "system:node:vn-a"} in asked
    assert all(attributes.get("name") for attributes in asked if attributes["verb"] == "impersonate")
