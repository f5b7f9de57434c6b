"""Talks to one apiserver: raw JSON verbs, paced, with every failure mapped to ``errors`` here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from prometheus_client import Counter, Histogram
from yarl import URL

from controller_runtime.errors import (
    ApiError,
    ConnectionFailed,
    Expired,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    error_from_response,
)
from controller_runtime.kubeconfig import ClusterConfig
from controller_runtime.objects import Object, WatchEvent, decode_list, decode_watch_event
from controller_runtime.rate_limiter import TokenBucket
from controller_runtime.resources import Resource

_REQUESTS = Counter(
    "rest_client_requests_total", "Requests by cluster, verb and HTTP code.", ["cluster", "verb", "code"]
)
_SECONDS = Histogram(
    "rest_client_request_duration_seconds",
    "Seconds from asking for a request to its answer, watches and streams left out.",
    ["cluster", "verb"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

_CONNECT_TIMEOUT = 10.0
_WATCH_GRACE = 30.0
"""Seconds of silence beyond a watch's own time-out after which its connection counts as dead."""
_DEFAULT_WATCH = 300.0
_IDEMPOTENT = frozenset({"GET", "HEAD"})
_JSON = {"Content-Type": "application/json"}

encode = msgspec.json.encode
decode = msgspec.json.decode

Batch = list[WatchEvent]
"""An alias, because ``Client.list`` hides the built-in's name inside the class."""
Params = Mapping[str, str] | Sequence[tuple[str, str]]


class PatchType(enum.StrEnum):
    """How a patch is to be read, as its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A list and the resourceVersion to watch from."""

    items: list[Object]
    resource_version: str


class Client:
    """One aiohttp session to one apiserver, kept alive and paced by a token bucket."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        qps: float = 50,
        burst: int = 100,
        user_agent: str = "virtual-node",
        timeout: float = 30.0,
        cluster: str = "",
    ) -> None:
        """Set up; connections open on first use.

        Args:
            config: the cluster and our credentials.
            qps: requests per second over time; 0: unlimited.
            burst: requests at once.
            user_agent: names us in the server's audit log.
            timeout: seconds a request may take, retries included.
            cluster: the cluster's name in logs and metrics.
        """
        self.config = config
        self.cluster = cluster
        self.bucket = TokenBucket(qps, burst)
        self._timeout = timeout
        self._user_agent = user_agent
        self._field_manager = user_agent.partition("/")[0]
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}
        self._counters: dict[tuple[str, int], Any] = {}
        self._timers: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        """Use as a context manager, or call ``close``."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- verbs ------------------------------------------------------------------------------------

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        params: Params | None = None,
    ) -> dict[str, Any]:
        """Read one object.

        Raises:
            NotFound: it does not exist.
            ApiError: anything else.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json("GET", path, params=params)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        resource_version: str | None = None,
    ) -> ObjectList:
        """Read a whole collection, page by page.

        A continue token that expires in mid-list (410) makes the whole list be read once without pages.
        """
        path = resource.path(namespace=namespace)
        params = _selectors(label_selector, field_selector)
        if resource_version is not None:
            params["resourceVersion"] = resource_version
        items: list[Object] = []
        page = dict(params)
        if limit:
            page["limit"] = str(limit)
        while True:
            try:
                found, meta = decode_list(
                    await self.request("GET", path, params=page, verb="LIST"),
                    api_version=resource.api_version,
                    kind=resource.kind,
                )
            except Expired:
                if "continue" not in page:
                    raise
                items, page = [], dict(params)
                continue
            items += found
            if not meta.continue_:
                return ObjectList(items, meta.resource_version)
            page = {**params, "limit": str(limit), "continue": meta.continue_}
            page.pop("resourceVersion", None)
            await asyncio.sleep(0)

    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        timeout_seconds: float = _DEFAULT_WATCH,
        allow_bookmarks: bool = True,
        send_initial_events: bool = False,
        read_timeout: float | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Follow a collection, event by event; see ``watch_batches``."""
        batches = self.watch_batches(
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            timeout_seconds=timeout_seconds,
            allow_bookmarks=allow_bookmarks,
            send_initial_events=send_initial_events,
            read_timeout=read_timeout,
        )
        async with contextlib.aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
        timeout_seconds: float = _DEFAULT_WATCH,
        allow_bookmarks: bool = True,
        send_initial_events: bool = False,
        read_timeout: float | None = None,
    ) -> AsyncGenerator[Batch, None]:
        """Follow a collection; yields what each read from the network brought.

        Ends when the server closes the watch, as it does after ``timeout_seconds``.

        Raises:
            Expired: the resourceVersion is too old; list again.
            ConnectionFailed: the connection broke, or was silent for ``read_timeout`` seconds.
            ApiError: the server refuses, or reports an error in mid-stream.
        """
        params = _selectors(label_selector, field_selector)
        params["watch"] = "1"
        params["timeoutSeconds"] = str(max(1, int(timeout_seconds)))
        if allow_bookmarks:
            params["allowWatchBookmarks"] = "true"
        if resource_version is not None:
            params["resourceVersion"] = resource_version
        if send_initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        silence = read_timeout if read_timeout is not None else timeout_seconds + _WATCH_GRACE
        path = resource.path(namespace=namespace)
        async with self.stream("GET", path, params=params, read_timeout=silence, verb="WATCH") as response:
            pending = b""
            try:
                async for chunk in response.content.iter_any():
                    head, newline, tail = chunk.rpartition(b"\n")
                    if not newline:
                        pending += chunk
                        continue
                    lines = (pending + head).split(b"\n")
                    pending = tail
                    yield [decode_watch_event(line) for line in lines if line]
            except _NETWORK_ERRORS as error:
                raise self._connection_failed(error) from error

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        params: Params | None = None,
    ) -> dict[str, Any]:
        """Create an object, or POST to a subresource of ``name``.

        Raises:
            AlreadyExists: the name is taken.
            ApiError: anything else.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json("POST", path, params=self._managed(params), body=encode(body), headers=_JSON)

    async def update(
        self, resource: Resource, body: Mapping[str, Any], *, subresource: str | None = None
    ) -> dict[str, Any]:
        """Replace an object; its resourceVersion is the precondition.

        Raises:
            Conflict: somebody else changed it first.
            ApiError: anything else.
        """
        metadata = body["metadata"]
        path = resource.path(
            namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource
        )
        return await self._json("PUT", path, params=self._managed(None), body=encode(body), headers=_JSON)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        patch_type: PatchType = PatchType.MERGE,
        params: Params | None = None,
    ) -> dict[str, Any]:
        """Change parts of an object.

        Raises:
            NotFound: it does not exist.
            Conflict: a UID or resourceVersion in the patch does not hold.
            ApiError: anything else.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json(
            "PATCH",
            path,
            params=self._managed(params),
            body=encode(patch),
            headers={"Content-Type": patch_type.value},
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_seconds: int | None = None,
        propagation_policy: str | None = None,
    ) -> dict[str, Any]:
        """Delete an object, optionally only the very one of that uid.

        Raises:
            NotFound: it does not exist.
            Conflict: the precondition does not hold.
            ApiError: anything else.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        preconditions = {
            key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value
        }
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
        path = resource.path(namespace=namespace, name=name)
        return await self._json("DELETE", path, body=encode(options), headers=_JSON)

    async def version(self, *, timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109 - of the request
        """The server's ``/version``."""
        answer: dict[str, Any] = decode(await self.request("GET", "/version", timeout=timeout))
        return answer

    async def ping(self, *, timeout: float) -> None:  # noqa: ASYNC109 - of the request
        """Is the server ready to serve? Falls back to ``/version`` where ``/readyz`` is not for us.

        Raises:
            ApiError: it is not.
        """
        try:
            await self.request("GET", "/readyz", timeout=timeout)
        except Unavailable:
            raise
        except ApiError:
            await self.version(timeout=timeout)

    # --- transport --------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - bounds retries, which a caller's timeout could not
        verb: str = "",
    ) -> bytes:
        """Send one request and read its whole answer.

        429, and 503 with Retry-After, are tried again within the time-out, for every verb: the server says
        that it has not acted. A broken connection is tried again once, for reads only.

        Raises:
            ApiError: by the answer; ConnectionFailed when there is none.
        """
        verb = verb or method
        limit = timeout if timeout is not None else self._timeout
        started = time.perf_counter()
        deadline = started + limit
        broken = refreshed = False
        while True:
            await self.bucket.acquire()
            left = max(0.05, deadline - time.perf_counter())
            try:
                code, answer, answer_headers = await self._send(
                    method, path, params=params, body=body, headers=headers, timeout=left, refresh=refreshed
                )
            except _NETWORK_ERRORS as error:
                self._count(verb, 0)
                if (
                    method in _IDEMPOTENT
                    and not broken
                    and isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
                ):
                    broken = True
                    continue
                raise self._connection_failed(error) from error
            self._count(verb, code)
            if code < 400:
                timer = self._timers.get(verb)
                if timer is None:
                    timer = self._timers[verb] = _SECONDS.labels(self.cluster, verb)
                timer.observe(time.perf_counter() - started)
                return answer
            failure = error_from_response(code, answer, answer_headers)
            if isinstance(failure, Unauthorized) and not refreshed:
                refreshed = True
                continue
            shed = isinstance(failure, TooManyRequests) or (code == 503 and failure.retry_after is not None)
            pause = max(failure.retry_after or 0.0, 0.05)
            if not shed or path.endswith("/eviction") or time.perf_counter() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        verb: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and hand over the answer while it arrives; an error answer raises instead.

        Args:
            method: HTTP method.
            path: as ``Resource.path`` makes it.
            params: query.
            headers: further headers.
            read_timeout: seconds of silence after which the connection counts as dead; None: never.
            verb: name in metrics; the method by default.

        Raises:
            ApiError: by the answer; ConnectionFailed when there is none.
        """
        await self.bucket.acquire()
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_TIMEOUT, connect=_CONNECT_TIMEOUT, sock_read=read_timeout
        )
        for attempt in (0, 1):
            sent = {**await self.config.headers(refresh=bool(attempt)), **(headers or {})}
            try:
                response = await self._open().request(
                    method,
                    self._url(path),
                    params=params,
                    headers=sent,
                    timeout=timeout,
                    allow_redirects=False,
                    proxy=self.config.proxy_url,
                    server_hostname=self.config.tls_server_name,
                )
            except _NETWORK_ERRORS as error:
                self._count(verb or method, 0)
                raise self._connection_failed(error) from error
            async with response:
                self._count(verb or method, response.status)
                if response.status < 400:
                    yield response
                    return
                failure = error_from_response(response.status, await response.read(), response.headers)
            if attempt or not isinstance(failure, Unauthorized):
                raise failure

    async def _send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout: float,  # noqa: ASYNC109
        refresh: bool,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        credentials = await self.config.headers(refresh=refresh)
        sent = {**credentials, **headers} if headers else credentials
        async with self._open().request(
            method,
            self._url(path),
            params=params,
            data=body,
            headers=sent,
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_TIMEOUT),
            allow_redirects=False,
            proxy=self.config.proxy_url,
            server_hostname=self.config.tls_server_name,
        ) as response:
            return response.status, await response.read(), response.headers

    async def _json(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        answer: dict[str, Any] = decode(
            await self.request(method, path, params=params, body=body, headers=headers)
        )
        return answer

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                # Watches hold a connection each, so the bound on requests is the callers' concurrency.
                limit=0,
                ssl=self.config.ssl if self.config.ssl is not None else False,
                keepalive_timeout=60,
                ttl_dns_cache=60,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    "User-Agent": self._user_agent,
                    "Accept": "application/json",
                    # Compressing on the way costs both sides more CPU than the bytes are worth.
                    "Accept-Encoding": "identity",
                },
                read_bufsize=2**18,
            )
        return self._session

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = URL(self.config.server + path, encoded=True)
            if path.count("/") < 7:  # collections; single objects are too many to remember
                self._urls[path] = url
        return url

    def _managed(self, params: Params | None) -> dict[str, str]:
        return {"fieldManager": self._field_manager, **dict(params or {})}

    def _count(self, verb: str, code: int) -> None:
        counter = self._counters.get((verb, code))
        if counter is None:
            counter = _REQUESTS.labels(self.cluster, verb, str(code) if code else "<error>")
            self._counters[verb, code] = counter
        counter.inc()

    def _connection_failed(self, error: BaseException) -> ConnectionFailed:
        text = " ".join(str(error).split())
        if isinstance(error, TimeoutError):
            text = "no answer in time"
        return ConnectionFailed(f"{self.config.server}: {text or type(error).__name__}")

    def __repr__(self) -> str:
        return f"<Client {self.cluster} {self.config.server}>"


_NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, ConnectionError, ssl.SSLError, socket.gaierror, OSError)


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    params: dict[str, str] = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params
