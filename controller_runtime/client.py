"""Talks to one apiserver: raw JSON verbs over a ``Transport``, which paces, retries and maps errors."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from controller_runtime.cluster_config import ClusterConfig
from controller_runtime.errors import ApiError, ConnectionFailed, Expired, Unavailable
from controller_runtime.lines import LineSplitter
from controller_runtime.objects import Object, WatchEvent, decode_list, decode_watch_event
from controller_runtime.rate_limiter import TokenBucket
from controller_runtime.resources import Resource
from controller_runtime.transport import NETWORK_ERRORS, Params, Transport

_WATCH_GRACE = 30.0
"""Seconds of silence beyond a watch's own time-out after which its connection counts as dead."""
_DEFAULT_WATCH = 300.0
_JSON = {"Content-Type": "application/json"}
_EXCERPT = 100

T = TypeVar("T")

encode = msgspec.json.encode
decode = msgspec.json.decode

Lines = list[bytes]
Batch = list[WatchEvent]
"""Aliases, because ``Client.list`` hides the built-in's name inside the class."""


class PatchType(enum.StrEnum):
    """How a patch is to be read, as its content type."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"


_PATCH_HEADERS = {kind: {"Content-Type": kind.value} for kind in PatchType}


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
            qps: requests per second over time; 0: unlimited. Every resource gets its turn: a thousand pods to
                create do not delay a lease.
            burst: requests at once.
            user_agent: names us in the server's audit log; up to a slash, it is our field manager.
            timeout: seconds a request may take, retries included, waiting for the rate limit left out.
            cluster: the cluster's name in logs and metrics.
        """
        self.config = config
        self.cluster = cluster
        self.bucket = TokenBucket(qps, burst)
        self._field_manager = quote(user_agent.partition("/")[0], safe="")
        self._transport = Transport(
            config, bucket=self.bucket, user_agent=user_agent, timeout=timeout, cluster=cluster
        )
        self.request = self._transport.request
        """See ``Transport.request``."""
        self.stream = self._transport.stream
        """See ``Transport.stream``."""

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
        """Close all connections; requests under way, and later ones, fail."""
        await self._transport.close()

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
        return await self._json(resource, "GET", path, params=params)

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
        page = {**params, "limit": str(limit)} if limit else dict(params)
        reader = partial(decode_list, api_version=resource.api_version, kind=resource.kind)
        while True:
            try:
                answer = await self._transport.request(
                    "GET", path, params=page, verb="LIST", flow=resource.plural
                )
            except Expired:
                if "continue" not in page:
                    raise
                items, page = [], dict(params)
                continue
            found, meta = self._decode(answer, reader)
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
        async with self._transport.stream(
            "GET",
            path,
            params=params,
            read_timeout=silence,
            head_timeout=self._transport.timeout,
            verb="WATCH",
            flow=resource.plural,
        ) as response:
            splitter = LineSplitter()
            while chunk := await self._read(response):
                events, error = self._events(splitter.feed(chunk))
                if events:
                    yield events
                if error is not None:
                    raise error
            if splitter.has_rest:
                raise ConnectionFailed(f"{self.config.server}: the watch ended in the middle of an event")

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create an object, or POST to a subresource of ``name``.

        Args:
            resource: of which kind.
            body: the object.
            namespace: by default the one that the body names.
            name: of the object whose subresource it is.
            subresource: of ``name``.
            params: query.
            headers: further headers of this one request, such as ``Impersonate-User``.

        Raises:
            AlreadyExists: the name is taken.
            ApiError: anything else.
        """
        if name is None:
            body = _complete(resource, body)
            namespace = namespace or body.get("metadata", {}).get("namespace")
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._json(resource, "POST", path, body=body, params=params, headers=headers)

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
        return await self._json(resource, "PUT", path, body=_complete(resource, body))

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
            resource, "PATCH", path, body=patch, params=params, content_type=_PATCH_HEADERS[patch_type]
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
        return await self._json(resource, "DELETE", path, body=options)

    async def version(self, *, timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109 - of the request
        """The server's ``/version``."""
        answer: dict[str, Any] = self._decode(
            await self._transport.request("GET", "/version", timeout=timeout), decode
        )
        return answer

    async def ping(self, *, timeout: float) -> None:  # noqa: ASYNC109 - of the request
        """Is the server ready to serve? Falls back to ``/version`` where ``/readyz`` is not for us.

        Raises:
            ApiError: it is not.
        """
        try:
            await self._transport.request("GET", "/readyz", timeout=timeout)
        except Unavailable:
            raise
        except ApiError:
            await self.version(timeout=timeout)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await response.content.readany()
        except NETWORK_ERRORS as error:
            raise self._transport.failure(error) from error

    def _events(self, lines: Lines) -> tuple[Batch, ApiError | None]:
        """The events up to the first that is an error, and that error."""
        events: Batch = []
        try:
            for line in lines:
                events.append(self._decode(line, decode_watch_event))
        except ApiError as error:
            return events, error
        return events, None

    async def _json(
        self,
        resource: Resource,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Params | None = None,
        content_type: Mapping[str, str] = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        if method not in {"GET", "DELETE"}:
            path = f"{path}?fieldManager={self._field_manager}"
        answer = await self._transport.request(
            method,
            path,
            params=params,
            body=None if body is None else encode(body),
            headers={**({} if body is None else content_type), **(headers or {})},
            flow=resource.plural,
        )
        return self._decode(answer, decode)

    def _decode(self, answer: bytes, decoder: Callable[[bytes], T]) -> T:
        try:
            return decoder(answer)
        except msgspec.DecodeError as error:
            excerpt = " ".join(answer[:_EXCERPT].decode("utf-8", "replace").split())
            raise ConnectionFailed(
                f"{self.config.server}: the answer is not what a Kubernetes API sends: {excerpt!r}"
            ) from error

    def __repr__(self) -> str:
        return f"<Client {self.cluster} {self.config.server}>"


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    params: dict[str, str] = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params


def _complete(resource: Resource, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Servers insist on apiVersion and kind, which a caller has said by naming the resource."""
    if "kind" in body and "apiVersion" in body:
        return body
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
