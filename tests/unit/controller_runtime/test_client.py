"""The verbs, against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime import resources
from controller_runtime.client import Client, PatchType
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from controller_runtime.lines import LineSplitter
from controller_runtime.objects import Object, WatchEvent
from tests.unit.controller_runtime.loopback import (
    Script,
    answers,
    client_of,
    failure,
    reply,
    send_chunks,
    serve,
)

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
    """Each verb sends the method, path, query, content type and body that the API conventions say."""
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
    """An error answer raises its class with the server's words, after one request."""
    async with serve(answers(failure(code, reason, "no such luck"))) as server, client_of(server) as client:
        with pytest.raises(expected, match=rf"no such luck \({code} {reason}\)") as caught:
            await client.get(resources.NODES, "n")
    assert type(caught.value) is expected
    assert caught.value.status["code"] == code
    assert len(server.asked) == 1


async def test_headers_of_one_request() -> None:
    """Headers given to create go with that request alone, beside those that every request has."""
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
async def test_answer_that_is_no_json(body: bytes) -> None:
    """Something in between that answers 200 with a page of its own is a connection that failed, not a crash."""
    async with serve(answers(web.Response(body=body))) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed, match="the answer is not what a Kubernetes API sends"):
            await client.get(resources.NODES, "n")


async def test_redirects_are_not_followed() -> None:
    """A login page that we are sent to never sees our token."""
    async with (
        serve(answers(web.Response(status=302, headers={"Location": "/login"}))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(ApiError, match="302"):
            await client.get(resources.NODES, "n")
    assert [asked.path for asked in server.asked] == ["/api/v1/nodes/n"]


# --- list ---------------------------------------------------------------------------------------------


def page(names: str, *, version: str = "9", token: str = "") -> web.Response:
    """A page of pods without kinds, as servers send them."""
    return reply(
        {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": version, **({"continue": token} if token else {})},
            "items": [{"metadata": {"name": name, "namespace": "shop"}} for name in names],
        }
    )


async def test_list_follows_the_pages() -> None:
    """Pages are asked for until the server names no more, and come out as one list."""
    script = answers(page("ab", token="t1"), page("cd", token="t2"), page("e"))
    async with serve(script) as server, client_of(server) as client:
        found = await client.list(
            resources.PODS,
            namespace="shop",
            limit=2,
            label_selector="a=b,c",
            field_selector="spec.nodeName=n",
            resource_version="0",
        )
    assert "".join(item.name for item in found.items) == "abcde"
    assert found.resource_version == "9"
    assert {(item.api_version, item.kind) for item in found.items} == {("v1", "Pod")}
    selection = {"labelSelector": "a=b,c", "fieldSelector": "spec.nodeName=n", "limit": "2"}
    assert [asked.query for asked in server.asked] == [
        {**selection, "resourceVersion": "0"},
        {**selection, "continue": "t1"},
        {**selection, "continue": "t2"},
    ]
    assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/shop/pods"}


async def test_pages_are_transformed_as_they_come() -> None:
    """What nobody needs of a page is gone before the next page is asked for."""
    pages = [page("ab", token="t1"), page("cd", token="t2"), page("e")]
    dropped: list[str] = []
    dropped_before_page: list[int] = []

    async def script(request: web.Request) -> web.StreamResponse:
        dropped_before_page.append(len(dropped))
        return pages.pop(0)

    def drop(found: Object) -> Object:
        dropped.append(found.name)
        return found.without("spec", "status")

    async with serve(script) as server, client_of(server) as client:
        found = await client.list(resources.PODS, limit=2, transform=drop)
    assert dropped_before_page == [0, 2, 4]
    assert [(item.name, item.spec) for item in found.items] == [(name, None) for name in "abcde"]


async def test_list_without_pages() -> None:
    """A limit of 0 asks for everything at once."""
    async with serve(answers(page("abc"))) as server, client_of(server) as client:
        found = await client.list(resources.PODS, limit=0)
    assert (len(found.items), server.asked[0].query) == (3, {})


async def test_continue_token_that_expires() -> None:
    """410 in mid-list: the whole list is read again without pages, and nothing comes twice."""
    script = answers(page("ab", token="t1"), failure(410, "Expired"), page("abcd", version="12"))
    async with serve(script) as server, client_of(server) as client:
        found = await client.list(resources.PODS, limit=2, label_selector="a")
    assert "".join(item.name for item in found.items) == "abcd"
    assert found.resource_version == "12"
    assert server.asked[-1].query == {"labelSelector": "a"}


async def test_expired_version_of_a_list() -> None:
    """410 on the first page is the caller's to handle: the version asked for is gone."""
    async with serve(answers(failure(410, "Expired"))) as server, client_of(server) as client:
        with pytest.raises(Expired):
            await client.list(resources.PODS, resource_version="3")


# --- watch --------------------------------------------------------------------------------------------


def line(kind: str, name: str, *, version: str = "1", filler: int = 0) -> bytes:
    """A line of a watch."""
    return (
        json.dumps(
            {
                "type": kind,
                "object": {
                    "kind": "Pod",
                    "apiVersion": "v1",
                    "metadata": {"name": name, "resourceVersion": version},
                    "spec": {"filler": "x" * filler},
                },
            }
        ).encode()
        + b"\n"
    )


def streaming(*chunks: bytes) -> Script:
    """A script that answers every request with these chunks."""

    async def script(request: web.Request) -> web.StreamResponse:
        return await send_chunks(request, chunks)

    return script


async def follow(client: Client, **options: Any) -> list[WatchEvent]:
    """All events of a watch."""
    return [event async for event in client.watch(resources.PODS, **options)]


async def names_until(
    client: Client, expected: type[Exception], *, match: str = "", **options: Any
) -> list[str]:
    """The names a watch gives before it fails as expected."""
    seen: list[str] = []

    async def follow() -> None:
        async for event in client.watch(resources.PODS, **options):
            seen.append(event.object.name)  # noqa: PERF401 - kept although the loop raises

    with pytest.raises(expected) as caught:
        await follow()
    assert match in str(caught.value)
    return seen


async def test_watch() -> None:
    """Events come in order, a bookmark among them, and the watch ends when the server ends it."""
    script = streaming(
        line("ADDED", "a", version="5"), line("BOOKMARK", "", version="8"), line("DELETED", "a")
    )
    async with serve(script) as server, client_of(server) as client:
        events = await follow(
            client,
            namespace="shop",
            label_selector="a=b",
            field_selector="c=d",
            resource_version="4",
            timeout_seconds=12.7,
        )
    assert [(event.type, event.object.name) for event in events] == [
        ("ADDED", "a"),
        ("BOOKMARK", ""),
        ("DELETED", "a"),
    ]
    assert events[1].object.resource_version == "8"
    assert server.asked[0].query == {
        "watch": "1",
        "timeoutSeconds": "12",
        "allowWatchBookmarks": "true",
        "resourceVersion": "4",
        "labelSelector": "a=b",
        "fieldSelector": "c=d",
    }


async def test_bookmarks_may_be_declined() -> None:
    """Who watches for a moment only needs none."""
    async with serve(streaming()) as server, client_of(server) as client:
        assert await follow(client, allow_bookmarks=False) == []
    assert server.asked[0].query == {"watch": "1", "timeoutSeconds": "300"}


@given(
    lines=st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=6),
    rest=st.binary(max_size=5).map(lambda line: line.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 30), max_size=12),
)
def test_lines_may_be_cut_anywhere(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """However the network cuts the stream, the same lines come out, blank ones left out."""
    whole = b"".join(line + b"\n" for line in lines) + rest
    splitter, found = LineSplitter(), list[bytes]()
    for cut in cuts:
        found += splitter.feed(whole[:cut])
        whole = whole[cut:]
    found += splitter.feed(whole)
    assert found == [line for line in lines if line]
    assert splitter.has_rest == bool(rest)


async def test_lines_of_any_size() -> None:
    """An object far larger than any buffer on the way is one event like any other."""
    big = line("ADDED", "big", filler=5_000_000)
    pieces = [big[start : start + 60_000] for start in range(0, len(big), 60_000)]
    async with (
        serve(streaming(line("ADDED", "a"), *pieces, line("ADDED", "b"))) as server,
        client_of(server) as client,
    ):
        events = await follow(client)
    assert [event.object.name for event in events] == ["a", "big", "b"]
    assert len(events[1].object.spec["filler"]) == 5_000_000


async def test_many_lines_make_few_batches() -> None:
    """What comes with one read from the network is handed over at once."""
    lines = [line("ADDED", f"pod-{number}") for number in range(1000)]
    async with serve(streaming(b"".join(lines))) as server, client_of(server) as client:
        batches = [batch async for batch in client.watch_batches(resources.PODS)]
    assert sum(len(batch) for batch in batches) == 1000
    assert len(batches) < 50


async def test_events_before_an_error_are_delivered() -> None:
    """What came in the same chunk before an ERROR is handed over first; then the error is raised."""
    error = json.dumps(
        {
            "type": "ERROR",
            "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
        }
    )
    async with (
        serve(streaming(line("ADDED", "a") + error.encode() + b"\n")) as server,
        client_of(server) as client,
    ):
        assert await names_until(client, Expired, match="too old (410 Expired)") == ["a"]


async def test_watch_that_is_refused() -> None:
    """An error answer to the watch itself raises before the first event."""
    async with serve(answers(failure(410, "Gone"))) as server, client_of(server) as client:
        with pytest.raises(Expired):
            await follow(client, resource_version="1")


@pytest.mark.parametrize("tail", [b'{"type":"ADD', b'{"type":"ADDED","object":3}\n', b"<html>\n"])
async def test_watch_of_something_else(tail: bytes) -> None:
    """An event that is cut off, or is none, is a failed connection, after the good ones."""
    async with serve(streaming(line("ADDED", "a"), tail)) as server, client_of(server) as client:
        assert await names_until(client, ConnectionFailed) == ["a"]


async def test_silent_watch() -> None:
    """A connection that says nothing for the read time-out counts as dead."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", "a"))
        await asyncio.Event().wait()
        return response

    async with serve(script) as server, client_of(server) as client:
        assert await names_until(client, ConnectionFailed, match="no answer in time", read_timeout=0.2) == [
            "a"
        ]


async def test_watch_that_does_not_begin() -> None:
    """A server that takes the watch and says nothing at all is noticed by the client's own time-out."""

    async def script(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve(script) as server, client_of(server, timeout=0.2) as client:
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await follow(client)


async def test_watch_cut_by_the_network() -> None:
    """A connection that is torn down in mid-watch raises; it does not look like the watch's regular end."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", "a"))
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serve(script) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed):
            await follow(client)


async def test_leaving_a_watch_closes_its_connection() -> None:
    """A watch that nobody reads any more ends on the server, too."""
    gone = asyncio.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", "a"))
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return response

    async with serve(script) as server, client_of(server) as client:
        events = client.watch(resources.PODS)
        assert (await anext(events)).object.name == "a"
        await events.aclose()
        async with asyncio.timeout(5):
            await gone.wait()


# --- version and ping ---------------------------------------------------------------------------------


async def test_version() -> None:
    """The server's version document."""
    async with serve(answers(reply({"gitVersion": "v1.34.4"}))) as server, client_of(server) as client:
        assert (await client.version())["gitVersion"] == "v1.34.4"
    assert server.asked[0].path == "/version"


@pytest.mark.parametrize("first", [200, 403, 404])
async def test_ping(first: int) -> None:
    """Ready is what /readyz says; where it is not for us, /version answering is enough."""
    script = answers(reply() if first == 200 else failure(first, "x"), *([reply()] if first != 200 else []))
    async with serve(script) as server, client_of(server) as client:
        await client.ping(timeout=5)
    assert [asked.path for asked in server.asked] == ["/readyz", "/version"][: 1 if first == 200 else 2]


async def test_ping_of_a_server_that_is_not_ready() -> None:
    """A server that says it is not ready is not asked for its version instead."""
    async with (
        serve(answers(web.Response(status=500, text="[-]etcd failed"))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(Unavailable, match="etcd failed"):
            await client.ping(timeout=5)
    assert len(server.asked) == 1
