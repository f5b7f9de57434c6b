"""The extender's paths: authentication, optional paths, limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY

from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import make_ca, self_signed, sign
from controller_runtime.tls.reloader import CertificateReloader
from multi_scheduler.extender import server as server_module
from multi_scheduler.extender.extender import Filtered, NotReadyError
from multi_scheduler.extender.protocol import Candidates, candidates
from multi_scheduler.extender.server import MAX_BODY_BYTES, ExtenderServer
from multi_scheduler.program import PROGRAM
from tests.serving import client_context
from tests.unit.controller_runtime.leaderelection.election import Store, lease
from tests.unit.multi_scheduler.extender.replicas import Replica

BINDING = {"PodName": "web", "PodNamespace": "shop", "PodUID": "u-1", "Node": "vn-a"}


class Binder:
    """An extender that records the pods to bind."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, ...]] = []

    async def bind(self, *what: str) -> str:
        self.bound.append(what)
        return ""


class Filter:
    """An extender that passes every node and records the pods."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.blocked: asyncio.Event | None = None

    async def filter(self, asked: Candidates) -> Filtered:
        self.asked.append(asked.pod["metadata"]["uid"])
        if self.blocked is not None:
            await self.blocked.wait()
        return Filtered(list(asked.names), {}, {})


@contextlib.asynccontextmanager
async def serving(extender: Any, *, bind: bool = False, **options: Any) -> AsyncIterator[str]:
    """Run a server; yield its URL."""
    server = ExtenderServer("127.0.0.1", 0, tls=None, extender=extender, serve_bind=bind, **options)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return a configuration file with one cluster."""
    text = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "MultiSchedulerConfiguration",
        "clusters": [{"name": "a", "kubeconfig": "a.yaml"}],
    }
    file = tmp_path / "multi-scheduler.yaml"
    file.write_text(json.dumps(text), encoding="utf-8")
    return f"--config={file}"


async def test_bind_is_404_without_the_flag():
    """Nothing is bound."""
    extender = Binder()
    async with serving(extender, bind=False) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/bind", json=BINDING) as answer:
            assert answer.status == 404
        async with session.post(f"{url}/filter", data=b"") as answer:
            assert answer.status == 200  # the error is in the result, where kube-scheduler reads it
    assert extender.bound == []


async def test_reports_that_it_is_not_ready():
    """In the form that kube-scheduler reads; the pod is retried, and its Event has the reason."""

    class Ignorant(Binder):
        async def filter(self, _asked: Any) -> None:
            raise NotReadyError("the upper cluster's nodes have not been read yet")

        async def preempt(self, *_: Any) -> None:
            raise NotReadyError("the upper cluster's nodes have not been read yet")

    pod: dict[str, Any] = {"metadata": {}, "spec": {}}
    async with serving(Ignorant(), bind=False) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/filter", json={"Pod": pod, "NodeNames": ["a"]}) as answer:
            assert answer.status == 200
            assert "not been read" in (await answer.json(content_type=None))["Error"]
        async with session.post(f"{url}/preempt", json={"Pod": pod}) as answer:
            assert answer.status == 503


async def test_serves_bind_with_the_flag():
    """For a scheduler with bindVerb."""
    extender = Binder()
    async with (
        serving(extender, bind=True) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/bind", json=BINDING) as answer,
    ):
        assert (answer.status, await answer.json(content_type=None)) == (200, {"Error": ""})
    assert extender.bound == [("shop", "web", "u-1", "vn-a")]


def _call(uid: str = "u", **more: Any) -> dict[str, Any]:
    return {"Pod": {"metadata": {"uid": uid}, "spec": {}}, "NodeNames": ["a"], **more}


def _refused(verb: str) -> float:
    labels = {"verb": verb, "outcome": "refused"}
    return REGISTRY.get_sample_value("virtual_node_extender_calls_total", labels) or 0.0


async def test_refuses_while_another_replica_is_active():
    """In the form that kube-scheduler reads, with the name of that replica; no agent is called."""
    store = Store()
    store.create("leases", lease(holderIdentity="pod-b_1_ff", leaseDurationSeconds=15))
    replica, extender = Replica(store, "a"), Filter()
    async with (
        replica.running(),
        serving(extender, bind=True, active=replica.active) as url,
        aiohttp.ClientSession() as session,
    ):
        for verb, status, body in (
            ("filter", 200, _call()),
            ("prioritize", 503, _call()),
            ("preempt", 503, _call()),
            ("bind", 200, BINDING),
        ):
            before = _refused(verb)
            async with session.post(f"{url}/{verb}", json=body) as answer:
                assert answer.status == status
                assert "pod-b_1_ff is the active replica" in (await answer.json(content_type=None))["Error"]
            assert _refused(verb) == before + 1
        async with session.get(f"{url}/readyz") as answer:
            assert answer.status == 200
    assert extender.asked == []


async def test_binds_only_pods_that_it_filtered(monkeypatch: pytest.MonkeyPatch):
    """Otherwise kube-scheduler gets an error and filters the pod again."""
    monkeypatch.setattr("multi_scheduler.extender.active.SETTLE_SECONDS", 0)

    class Both(Filter, Binder):
        def __init__(self) -> None:
            Filter.__init__(self)
            Binder.__init__(self)

    replica, extender = Replica(Store(), "a"), Both()
    async with (
        replica.running(),
        serving(extender, bind=True, active=replica.active) as url,
        aiohttp.ClientSession() as session,
    ):

        async def call(verb: str, body: dict[str, Any]) -> str:
            async with session.post(f"{url}/{verb}", json=body) as answer:
                return str((await answer.json(content_type=None))["Error"])

        assert "filter the pod again" in await call("bind", BINDING)
        assert extender.bound == []
        assert await call("filter", _call("u-1")) == ""
        assert await call("bind", BINDING) == ""
        assert extender.bound == [("shop", "web", "u-1", "vn-a")]
    assert replica.client.store.holder == ""


async def test_refuses_too_large_calls():
    """413 above 4 MiB, or above the flag's value; no agent is called."""
    extender = Filter()
    for limit in (MAX_BODY_BYTES, 8 * 1024**2):
        async with serving(extender, max_body_bytes=limit) as url, aiohttp.ClientSession() as session:
            call = json.dumps(_call(Filler="x" * (limit - 200))).encode()
            assert limit - 200 < len(call) <= limit
            async with session.post(f"{url}/filter", data=BytesIO(call)) as answer:
                assert answer.status == 200
            async with session.post(f"{url}/filter", data=BytesIO(call + b" " * 200)) as answer:
                assert answer.status == 413
    assert len(extender.asked) == 2


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
async def test_client_ca_refuses_other_clients(verb):
    """401 without a certificate; a certificate of another CA fails the handshake."""
    pair, clients = self_signed("n", hosts=["127.0.0.1"]), make_ca("clients")
    tls = CertificateReloader.from_pair(pair, client_ca=clients.certificate)
    extender = Filter()
    server = ExtenderServer("127.0.0.1", 0, tls=tls, extender=extender, serve_bind=True)  # type: ignore[arg-type]
    async with server, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.port}"
        stranger = ssl.create_default_context(cadata=pair.certificate.decode())
        async with session.post(f"{url}/{verb}", json=_call("victim"), ssl=stranger) as answer:
            assert answer.status == 401
            assert "client certificate" in await answer.text()
        for path in ("healthz", "readyz", "metrics"):
            async with session.get(f"{url}/{path}", ssl=stranger) as answer:
                assert answer.status == 200
        other = client_context(pair, sign(make_ca("other"), "scheduler", usage="client"))
        with pytest.raises(aiohttp.ClientError):
            await session.post(f"{url}/{verb}", json=_call("victim"), ssl=other)
        assert extender.asked == []
        known = client_context(pair, sign(clients, "scheduler", usage="client"))
        async with session.post(f"{url}/filter", json=_call("mine"), ssl=known) as answer:
            assert answer.status == 200
        assert extender.asked == ["mine"]


async def test_calls_above_the_limit_wait_and_are_refused(monkeypatch: pytest.MonkeyPatch):
    """503 with Retry-After; the next call is served when a slot is free."""
    monkeypatch.setattr(server_module, "MAX_CALLS", 2)
    monkeypatch.setattr(server_module, "_CALL_SECONDS", 0.2)
    extender = Filter()
    extender.blocked = asyncio.Event()
    async with serving(extender) as url, aiohttp.ClientSession() as session:

        async def call() -> tuple[int, str | None]:
            async with session.post(f"{url}/filter", json=_call()) as answer:
                return answer.status, answer.headers.get("Retry-After")

        waiting = [asyncio.create_task(call()) for _ in range(3)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [(503, "1")]
        extender.blocked.set()
        assert [await task for task in pending] == [(200, None)] * 2
        assert await call() == (200, None)


def test_does_not_decode_unused_keys():
    """They would take 30 times their size in memory."""
    filler = b"[" + b"{}," * 300_000 + b"{}]"
    call = b'{"Pod":{"metadata":{},"spec":{}},"NodeNames":["a"],"Filler":' + filler + b"}"
    tracemalloc.start()
    try:
        assert candidates(call).names == ["a"]
        assert tracemalloc.get_traced_memory()[1] < len(call)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--client-ca=x"], "--client-ca: needs --tlscert"), (["--max-body-bytes=0"], "--max-body-bytes: 0")],
)
def test_refuses_incomplete_tls_flags(config, arguments, message):
    """The error names the flag."""
    with pytest.raises(ConfigError, match=message):
        PROGRAM.parse([config, *arguments])


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], False), (["--bind"], True), (["--bind=true"], True), (["--bind=false"], False)]
)  # fmt: skip
def test_binding_is_off_by_default(config, arguments, expected):
    """The flag accepts Go's boolean values."""
    assert PROGRAM.parse([config, *arguments]).bind is expected


def test_lease_is_off_by_default(config):
    """Then only one process may run. The chart always sets it."""
    assert PROGRAM.parse([config]).active_lease == ""
    options = PROGRAM.parse([config, "--active-lease=x", "--namespace=shop"])
    assert (options.active_lease, options.namespace) == ("x", "shop")


def test_chart_sets_flag_right_and_verb_together():
    """One value enables the route, the RBAC rule and the scheduler's bindVerb."""
    folder = Path(__file__).resolve().parents[4] / "charts" / "virtual-node" / "templates" / "multi-scheduler"
    deployment = (folder / "deployment.yaml").read_text(encoding="utf-8")
    assert "{{- if $values.bind }}\n            - --bind\n" in deployment
    assert "bindVerb: bind" in (folder / "_helpers.tpl").read_text(encoding="utf-8")
    assert '$sets = append $sets "bind"' in (folder / "rbac.yaml").read_text(encoding="utf-8")
