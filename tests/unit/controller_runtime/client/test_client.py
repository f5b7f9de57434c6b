"""The verbs, against a real HTTP server on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.apimachinery.translation_budget import LARGEST_BODY
from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    NotFound,
    RequestTooLarge,
    Unavailable,
    is_retryable,
)
from tests.unit.controller_runtime.loopback import answers, client_of, failure, reply, serve

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}}


Call = Callable[[Client], Awaitable[Any]]


@pytest.mark.parametrize(
    ("call", "method", "path", "query", "content_type", "body"),
    [
        (
            lambda c: c.get(resources.PODS, "web", namespace="shop", params={"a": "b c"}),
            "GET",
            "/api/v1/namespaces/shop/pods/web",
            {"a": "b c"},
            None,
            None,
        ),
        (
            lambda c: c.create(resources.PODS, POD),
            "POST",
            "/api/v1/namespaces/shop/pods",
            {"fieldManager": "tester"},
            "application/json",
            POD,
        ),
        (
            lambda c: c.create(resources.PODS, {"metadata": POD["metadata"]}, namespace="shop"),
            "POST",
            "/api/v1/namespaces/shop/pods",
            {"fieldManager": "tester"},
            "application/json",
            POD,
        ),
        (
            lambda c: c.create(
                resources.PODS,
                {"kind": "Binding", "target": {"name": "n"}},
                namespace="shop",
                name="web",
                subresource="binding",
                params={"dryRun": "All"},
            ),
            "POST",
            "/api/v1/namespaces/shop/pods/web/binding",
            {"fieldManager": "tester", "dryRun": "All"},
            "application/json",
            {"kind": "Binding", "target": {"name": "n"}},
        ),
        (
            lambda c: c.update(resources.PODS, POD, subresource="status"),
            "PUT",
            "/api/v1/namespaces/shop/pods/web/status",
            {"fieldManager": "tester"},
            "application/json",
            POD,
        ),
        (
            lambda c: c.update(resources.NODES, {"metadata": {"name": "n"}}),
            "PUT",
            "/api/v1/nodes/n",
            {"fieldManager": "tester"},
            "application/json",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}},
        ),
        (
            lambda c: c.patch(resources.PODS, "web", {"a": None}, namespace="shop"),
            "PATCH",
            "/api/v1/namespaces/shop/pods/web",
            {"fieldManager": "tester"},
            "application/merge-patch+json",
            {"a": None},
        ),
        (
            lambda c: c.patch(resources.NODES, "n", [{"op": "test"}], patch_type=PatchType.JSON),
            "PATCH",
            "/api/v1/nodes/n",
            {"fieldManager": "tester"},
            "application/json-patch+json",
            [{"op": "test"}],
        ),
        (
            lambda c: c.patch(resources.NODES, "n", {}, patch_type=PatchType.APPLY, params={"force": "true"}),
            "PATCH",
            "/api/v1/nodes/n",
            {"fieldManager": "tester", "force": "true"},
            "application/apply-patch+yaml",
            {},
        ),
        (
            lambda c: c.patch(resources.NODES, "n", {}, subresource="status", patch_type=PatchType.STRATEGIC),
            "PATCH",
            "/api/v1/nodes/n/status",
            {"fieldManager": "tester"},
            "application/strategic-merge-patch+json",
            {},
        ),
        (
            lambda c: c.delete(resources.PODS, "web", namespace="shop"),
            "DELETE",
            "/api/v1/namespaces/shop/pods/web",
            {},
            "application/json",
            {"apiVersion": "v1", "kind": "DeleteOptions"},
        ),
        (
            lambda c: c.delete(
                resources.PODS,
                "web",
                namespace="shop",
                uid="u",
                resource_version="7",
                grace_period_seconds=0,
                propagation_policy="Foreground",
            ),
            "DELETE",
            "/api/v1/namespaces/shop/pods/web",
            {},
            "application/json",
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"uid": "u", "resourceVersion": "7"},
                "gracePeriodSeconds": 0,
                "propagationPolicy": "Foreground",
            },
        ),
    ],
)
@pytest.mark.parametrize("tls", [False, True], ids=["http", "tls"])
async def test_verbs(  # noqa: PLR0917 - a table's columns
    call: Call,
    method: str,
    path: str,
    query: dict[str, str],
    content_type: str | None,
    body: Any,
    *,
    tls: bool,
) -> None:
    """Each verb sends the method, path, query, content type and body of the API conventions."""
    async with (
        serve(answers(reply({"fine": True})), tls=tls) as server,
        client_of(server, user_agent="tester/1.0") as client,
    ):
        assert await call(client) == {"fine": True}
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.query) == (method, path, query)
    assert asked.headers.get("Content-Type") == content_type
    assert (asked.json if asked.body else None) == body
    assert asked.headers["User-Agent"] == "tester/1.0"
    assert asked.headers["Accept"] == "application/json"


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", BadRequest),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (422, "Invalid", Invalid),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
    ],
)
async def test_errors_are_mapped(code: int, reason: str, expected: type[ApiError]) -> None:
    """An error response raises its class with the server's message, after one request."""
    async with serve(answers(failure(code, reason, "no such luck"))) as server, client_of(server) as client:
        with pytest.raises(expected, match=rf"no such luck \({code} {reason}\)") as caught:
            await client.get(resources.NODES, "n")
    assert type(caught.value) is expected
    assert caught.value.status["code"] == code
    assert len(server.asked) == 1


async def test_a_proxys_404_is_not_not_found() -> None:
    """An API server sends a Status with a 404; lower copies are deleted only because of that."""
    page = web.Response(status=404, text="default backend - 404")
    async with serve(answers(page)) as server, client_of(server) as client:
        with pytest.raises(Unavailable, match="default backend - 404"):
            await client.get(resources.SECRETS, "s", namespace="n")


async def test_headers_of_one_request() -> None:
    """Headers given to create apply to that request alone, in addition to those of every request."""
    body = {"metadata": {"name": "csr-1"}}
    async with serve(answers(reply(body), reply(body))) as server, client_of(server) as client:
        await client.create(
            resources.CERTIFICATE_SIGNING_REQUESTS, body, headers={"Impersonate-User": "system:node:vn"}
        )
        await client.create(resources.CERTIFICATE_SIGNING_REQUESTS, body)
    first, second = (asked.headers for asked in server.asked)
    assert (first["Impersonate-User"], first["Content-Type"]) == ("system:node:vn", "application/json")
    assert "Impersonate-User" not in second


@pytest.mark.parametrize("body", [b"<html>hello\nworld</html>", b"", b"\xff"])
async def test_response_that_is_no_json(body: bytes) -> None:
    """A proxy's page with code 200 is a failed connection."""
    async with serve(answers(web.Response(body=body))) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed, match="the answer is not what a Kubernetes API sends"):
            await client.get(resources.NODES, "n")


async def test_redirects_are_not_followed() -> None:
    """The target of a redirect never gets the token."""
    async with (
        serve(answers(web.Response(status=302, headers={"Location": "/login"}))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(ApiError, match="302"):
            await client.get(resources.NODES, "n")
    assert [asked.path for asked in server.asked] == ["/api/v1/nodes/n"]


async def test_version() -> None:
    """The server's version document."""
    async with serve(answers(reply({"gitVersion": "v1.34.4"}))) as server, client_of(server) as client:
        assert (await client.version())["gitVersion"] == "v1.34.4"
    assert server.asked[0].path == "/version"


@pytest.mark.parametrize("first", [200, 403, 404])
async def test_ping(first: int) -> None:
    """Ready is the response of /readyz; without access to it, a response of /version suffices."""
    script = answers(reply() if first == 200 else failure(first, "x"), *([reply()] if first != 200 else []))
    async with serve(script) as server, client_of(server) as client:
        await client.ping(timeout=5)
    assert [asked.path for asked in server.asked] == ["/readyz", "/version"][: 1 if first == 200 else 2]


async def test_ping_of_a_server_that_is_not_ready() -> None:
    """/version is not requested instead."""
    async with (
        serve(answers(web.Response(status=500, text="[-]etcd failed"))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(Unavailable, match="etcd failed"):
            await client.ping(timeout=5)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client, body: client.create(resources.CONFIG_MAPS, body),
        lambda client, body: client.patch(resources.CONFIG_MAPS, "c", body, namespace="shop"),
        lambda client, body: client.update(resources.CONFIG_MAPS, body),
    ],
    ids=["create", "patch", "update"],
)
async def test_a_body_that_no_server_reads_is_not_sent(call: Callable[[Client, Any], Awaitable[Any]]) -> None:
    """A server would answer the same to each repetition."""
    body = {"metadata": {"name": "c", "namespace": "shop"}, "data": {"a": "x" * LARGEST_BODY}}
    async with serve(answers()) as server, client_of(server) as client:
        with pytest.raises(RequestTooLarge, match=r" /api/v1/namespaces/shop/configmaps.*: the request has"):
            await call(client, body)
        assert server.asked == []


async def test_the_servers_refusal_of_a_large_object_is_not_retryable() -> None:
    """Etcd has a lower limit than the API server."""
    async with serve(answers(failure(413, "RequestEntityTooLarge"))) as server, client_of(server) as client:
        with pytest.raises(RequestTooLarge) as error:
            await client.create(resources.PODS, POD)
    assert not is_retryable(error.value)
