"""Authentication and authorization at the node, with a fake upper apiserver that answers reviews."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.tls.key_pairs import make_ca, sign
from tests.serving import served
from tests.unit.virtual_node.kubelet.conftest import Pki, Serve
from virtual_node.kubelet import auth
from virtual_node.kubelet.auth import Authenticator, Authorizer, load_client_ca

EXEC = "/exec/shop/web-1/nope?output=1&command=ls"
UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
TOKENS = {
    "good": {"username": "alice", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a", "b"]}},
    "nameless": {"username": ""},
}


class Upper:
    """The upper apiserver's reviews."""

    def __init__(self) -> None:
        self.allowed: set[tuple[str, str, str]] = set()
        self.questions: list[dict[str, Any]] = []
        self.token_reviews = 0
        self.failing = 0
        self.hangs: asyncio.Event | None = None
        self.config_map: dict[str, Any] | None = None

    async def token_review(self, request: web.Request) -> web.Response:
        """Return the user of a token."""
        self.token_reviews += 1
        if self.hangs is not None:
            await self.hangs.wait()
        if self.failing:
            return web.json_response({"kind": "Status", "message": "down"}, status=self.failing)
        token = (await request.json())["spec"]["token"]
        user = TOKENS.get(token)
        status = {"authenticated": True, "user": user} if user else {"authenticated": False}
        return web.json_response({"status": status}, status=201)

    async def access_review(self, request: web.Request) -> web.Response:
        """Return whether the user may."""
        spec = (await request.json())["spec"]
        self.questions.append(spec)
        if self.failing:
            return web.json_response({"kind": "Status", "message": "down"}, status=self.failing)
        asked = spec["resourceAttributes"]
        allowed = (spec["user"], asked["verb"], asked["subresource"]) in self.allowed
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async def client_ca(self, request: web.Request) -> web.Response:
        """Return the published client CA."""
        if self.config_map is None:
            return web.json_response({"kind": "Status", "code": 404, "message": "gone"}, status=404)
        return web.json_response(self.config_map)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Return the verbs and subresources of the reviews."""
        attributes = (question["resourceAttributes"] for question in self.questions)
        return [(a["verb"], a["subresource"]) for a in attributes]


@pytest.fixture
def upper() -> Upper:
    """The fake upper apiserver."""
    return Upper()


@pytest_asyncio.fixture
async def client(upper: Upper) -> AsyncIterator[Client]:
    """A client of the upper cluster."""
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    routes = (
        web.post("/apis/authentication.k8s.io/v1/tokenreviews", upper.token_review),
        web.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", upper.access_review),
        web.get(path, upper.client_ca),
    )
    async with (
        served(*routes) as port,
        Client(ConnectionConfig(f"http://127.0.0.1:{port}", source="test")) as client,
    ):
        yield client


async def test_a_bearer_token_is_reviewed_once(serve: Serve, upper: Upper, client: Client) -> None:
    """The access review has the name, groups and extras; the results are cached."""
    upper.allowed = {("alice", "get", "proxy")}
    async with serve(1, **_delegated(client)) as node:
        for _ in range(3):
            assert (await node.ask("/unknown", "Authorization: Bearer good"))[0] == 404
    assert upper.token_reviews == 1
    assert upper.questions == [
        {
            "user": "alice",
            "uid": "7",
            "groups": ["dev", "system:authenticated"],
            "extra": {"scopes": ["a", "b"]},
            "resourceAttributes": {
                "verb": "get",
                "version": "v1",
                "resource": "nodes",
                "subresource": "proxy",
                "name": "vnode",
            },
        }
    ]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer bad",),
        ("Authorization: Bearer nameless",),
        ("Authorization: Bearer",),
        ("Authorization: Basic Z29vZA==",),
        ("Authorization: good",),
    ],
)
async def test_invalid_credentials_are_refused(
    serve: Serve, upper: Upper, client: Client, headers: tuple[str, ...]
) -> None:
    """401 with the kubelet's message, without an access review."""
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask("/pods", *headers))[::2] == (401, "Unauthorized")
        assert (await node.ask(EXEC, *headers, *UPGRADE, method="POST"))[::2] == (401, "Unauthorized")
    assert upper.questions == []


async def test_a_token_with_invalid_bytes_is_refused(serve: Serve, upper: Upper, client: Client) -> None:
    """Bytes that are not UTF-8 cause no internal error."""
    async with serve(1, **_delegated(client)) as node:
        reader, writer = await node.connect()
        writer.write(b"GET /pods HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer \xff\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401 ")
        writer.close()
    assert upper.token_reviews == 0


async def test_anonymous_requests_only_if_configured(serve: Serve, upper: Upper, client: Client) -> None:
    """They have a user name like any other; a wrong token is still refused."""
    upper.allowed = {("system:anonymous", "get", "healthz")}
    authenticator = Authenticator(client, anonymous_auth=True)
    async with serve(
        1, authenticator=authenticator, authorizer=Authorizer(client, node_name="vnode")
    ) as node:
        assert (await node.ask("/healthz"))[::2] == (200, "ok")
        code, _, body = await node.ask("/pods")
        assert code == 403
        assert body == (
            "Forbidden (user=system:anonymous, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        )
        assert (await node.ask("/healthz", "Authorization: Bearer bad"))[0] == 401
    assert upper.questions[0]["groups"] == ["system:unauthenticated"]


async def test_a_browsers_token_is_in_the_websocket_protocols(
    serve: Serve, upper: Upper, client: Client
) -> None:
    """Only with an upgrade to WebSocket, and only well-formed."""
    upper.allowed = {("alice", "create", "proxy")}
    token = urlsafe_b64encode(b"good").decode().rstrip("=")
    protocol = f"Sec-WebSocket-Protocol: v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.{token}"
    websocket = ("Connection: Upgrade", "Upgrade: websocket")
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask(EXEC, *websocket, protocol))[::2] == (404, 'container not found ("nope")')
        assert (await node.ask(EXEC, protocol))[0] == 401
        assert (await node.ask(EXEC, *websocket, protocol + "=="))[0] == 401


async def test_exec_needs_create_even_as_a_get(serve: Serve, upper: Upper, client: Client) -> None:
    """The right to read nodes does not grant a shell."""
    upper.allowed = {("alice", "get", "proxy")}
    token = "Authorization: Bearer good"
    async with serve(1, **_delegated(client)) as node:
        for path in (EXEC, "/attach/shop/web-1/nope?output=1", "/portForward/shop/web-2"):
            code, _, body = await node.ask(path, token, "Connection: Upgrade", "Upgrade: websocket")
            assert code == 403
            assert body == "Forbidden (user=alice, verb=create, resource=nodes, subresource(s)=[proxy])\n"
        assert (await node.ask("/containerLogs/shop/web-1/nope", token))[0] == 404


async def test_the_narrower_right_suffices(serve: Serve, upper: Upper, client: Client) -> None:
    """``nodes/pods`` reads the pods without ``nodes/proxy``; ``nodes/proxy`` alone suffices, too."""
    token = "Authorization: Bearer good"
    upper.allowed = {("alice", "get", "pods")}
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask("/pods", token))[0] == 200
    assert upper.asked == [("get", "pods")]
    upper.questions.clear()
    upper.allowed = {("alice", "get", "proxy")}
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask("/pods", token))[0] == 200
    assert upper.asked == [("get", "pods"), ("get", "proxy")]


async def test_failing_reviews(serve: Serve, upper: Upper, client: Client) -> None:
    """Unknown tokens are refused, unknown rights are an error, and cached results remain valid."""
    token = "Authorization: Bearer good"
    upper.allowed = {("alice", "get", "healthz"), ("alice", "get", "metrics")}
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask("/healthz", token))[0] == 200
        upper.failing = 500
        assert (await node.ask("/healthz", token))[0] == 200
        assert (await node.ask("/healthz", "Authorization: Bearer other"))[0] == 401
        code, _, body = await node.ask("/metrics", token)
        assert code == 500
        assert body == "Authorization error (user=alice, verb=get, resource=nodes, subresource=metrics)"


async def test_reviews_without_credentials_for_the_upper_cluster(
    serve: Serve, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As failing ones."""

    async def fail(*_: object, **_more: object) -> None:
        raise ConfigError("tokenFile /token: No such file or directory")

    async with serve(1, **_delegated(client)) as node:
        monkeypatch.setattr(client.config, "headers", fail)
        assert (await node.ask("/healthz", "Authorization: Bearer good"))[::2] == (401, "Unauthorized")
    authorizer = Authorizer(client, node_name="vnode")
    async with serve(1, authorizer=authorizer) as node:
        assert (await node.ask("/metrics"))[0] == 500


@pytest.mark.looptime
async def test_a_stopping_server_cancels_its_reviews(serve: Serve, upper: Upper, client: Client) -> None:
    """Its clients are closed next."""
    upper.hangs = asyncio.Event()
    async with serve(1, **_delegated(client)) as node:
        _, writer = await node.connect()
        writer.write(b"GET /pods HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer good\r\n\r\n")
        while not upper.token_reviews:  # noqa: ASYNC110 - the fake tells nobody
            await asyncio.sleep(0.01)
        await node.server.stop()
        asking = [task for task in asyncio.all_tasks() if "ReviewCache" in repr(task.get_coro())]
        writer.close()
        upper.hangs.set()
        await asyncio.sleep(0.1)
    assert asking == []


@pytest.mark.parametrize("wire", ["tls"])
async def test_client_certificates(serve: Serve, pki: Pki, upper: Upper, client: Client) -> None:
    """The common name is the user, organisations are groups; certificates of other CAs end the handshake."""
    upper.allowed = {("kube-apiserver", "get", "healthz")}
    mine = sign(pki.ca, "kube-apiserver", organizations=["ops", "dev"], usage="client")
    strange = sign(make_ca("strangers"), "kube-apiserver", usage="client")
    async with serve(1, **_delegated(client)) as node:
        assert (await node.ask("/healthz", context=pki.client_context(mine)))[::2] == (200, "ok")
        assert (await node.ask("/healthz"))[0] == 401
        with pytest.raises((OSError, ValueError, IndexError)):
            await node.ask("/healthz", context=pki.client_context(strange))
    assert upper.questions[0]["user"] == "kube-apiserver"
    assert sorted(upper.questions[0]["groups"]) == ["dev", "ops", "system:authenticated"]
    assert upper.token_reviews == 0


@pytest.mark.parametrize("wire", ["tls"])
async def test_a_certificate_that_expires_during_a_connection_is_refused(
    serve: Serve, pki: Pki, upper: Upper, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections live longer than certificates, so every request is authenticated, as in a kubelet. A token still counts."""
    upper.allowed = {("kube-apiserver", "get", "healthz"), ("alice", "get", "healthz")}
    mine = sign(pki.ca, "kube-apiserver", usage="client", validity=timedelta(days=1))
    answers = []
    async with serve(1, **_delegated(client)) as node:
        reader, writer = await node.connect(pki.client_context(mine))
        for token, later in (("", 0.0), ("", 2 * 86400.0), ("Authorization: Bearer good\r\n", 2 * 86400.0)):
            now = time.time() + later
            monkeypatch.setattr(auth, "time", SimpleNamespace(time=lambda now=now: now))
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: node\r\n{token}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            answers.append(int(head.split(b" ")[1]))
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()
    assert answers == [200, 401, 200]


async def test_tokens_can_be_disabled(serve: Serve) -> None:
    """Without an upper client only certificates count."""
    async with serve(1, authenticator=Authenticator(None)) as node:
        assert (await node.ask("/healthz", "Authorization: Bearer good"))[0] == 401


async def test_the_client_ca_is_read_from_the_upper_cluster(upper: Upper, client: Client, pki: Pki) -> None:
    """Where extension apiservers find it; its absence is an error that names it."""
    with pytest.raises(NotFound):
        await load_client_ca(client)
    upper.config_map = {"data": {"client-ca-file": pki.ca.certificate.decode()}}
    assert await load_client_ca(client) == pki.ca.certificate
    upper.config_map = {"data": {}}
    with pytest.raises(NotFound, match="client-ca-file"):
        await load_client_ca(client)


def _delegated(client: Client) -> dict[str, Any]:
    return {"authenticator": Authenticator(client), "authorizer": Authorizer(client, node_name="vnode")}
