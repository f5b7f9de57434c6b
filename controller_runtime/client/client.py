"""A client for one API server: raw JSON verbs over a ``Transport``, which paces, retries and maps errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Any, TypeVar, Unpack

import aiohttp

from controller_runtime.client import list_pages
from controller_runtime.client.decoding import ListMeta, decode_list, decode_watch_event, page_decoder
from controller_runtime.client.list_pages import ListOptions, ListPages, ObjectList, ObjectSelection
from controller_runtime.client.object_verbs import ObjectVerbs, PatchType
from controller_runtime.client.transport import NETWORK_ERRORS
from controller_runtime.errors import ApiError, CacheFull, ConnectionFailed, ResponseTooLarge, Unavailable
from controller_runtime.objects import Object, WatchEvent
from controller_runtime.resources import Resource
from controller_runtime.util.lines import LineSplitter, LineTooLong
from controller_runtime.util.yielding import Slicer

__all__ = ["Batch", "Client", "ObjectList", "PatchType"]

_WATCH_GRACE = 30.0
"""Seconds of silence beyond a watch's own timeout after which its connection counts as dead."""
_DEFAULT_WATCH = 300.0
_BATCH = 64
"""Maximum events of a batch, because decoding the thousands of a single read takes tens of milliseconds."""

S = TypeVar("S")
T = TypeVar("T")
Items = list[T]
Lines = list[bytes]
Batch = list[WatchEvent]
"""Aliases, because ``Client.list`` hides the built-in name inside the class."""


class WatchOptions(ObjectSelection, total=False):
    """Options of ``Client.watch`` and ``Client.watch_batches``."""

    resource_version: str | None
    """The version after which changes are sent; None: the server's choice."""
    timeout_seconds: float
    """Seconds after which the server closes the watch (300)."""
    allow_bookmarks: bool
    """Whether the server sends bookmarks (true)."""
    read_timeout: float
    """Seconds of silence after which the connection counts as dead (30 more than ``timeout_seconds``)."""


class Client(ObjectVerbs):
    """A client for one API server, with kept-alive connections and a rate limit (token bucket)."""

    async def list(
        self,
        resource: Resource,
        *,
        transform: Callable[[Object], Object | None] | None = None,
        **options: Unpack[ListOptions],
    ) -> ObjectList:
        """Return a complete collection; see ``list_as``, with ``transform`` as ``convert``.

        Without ``transform``, the list must fit into the memory that the caches of this server may use.
        """
        if transform is not None:
            return ObjectList(*await self.list_as(resource, transform, **options))
        with self.caches.reading() as count:

            def counted(listed: Object) -> Object:
                count(listed)
                return listed

            try:
                return ObjectList(*await self.list_as(resource, counted, **options))
            except CacheFull as error:
                raise ResponseTooLarge(f"the list of {resource.qualified} is too large: {error}") from None

    async def list_as(
        self, resource: Resource, convert: Callable[[Object], T | None], **options: Unpack[ListOptions]
    ) -> tuple[Items[T], str]:
        """Return a complete collection, read page by page, and its resourceVersion.

        ``ListPages`` handles an expired continue token and a page that is too large.

        Args:
            resource: the resource to list.
            convert: called on every object of a page when it arrives, so that removed fields never fill memory. An object
                for which it returns None is left out.
            options: see ``ListOptions``.

        Raises:
            ResponseTooLarge: a single object exceeds a limit.
            ApiError: any other failure.
        """
        decode_page = partial(decode_list, api_version=resource.api_version, kind=resource.kind)
        return await self._list(resource, decode_page, convert, options)

    async def list_typed(self, resource: Resource, kind: type[T], **options: Unpack[ListOptions]) -> Items[T]:
        """Return a complete collection with only the fields of a type, such as a TypedDict; see ``list_as``."""
        return (await self._list(resource, page_decoder(kind), _unchanged, options))[0]

    async def _list(
        self,
        resource: Resource,
        decode_page: Callable[[bytes], tuple[Iterable[S], ListMeta]],
        convert: Callable[[S], T | None],
        options: ListOptions,
    ) -> tuple[Items[T], str]:
        path = resource.path(namespace=options.get("namespace"))
        params = _params(options)
        headers = list_pages.METADATA_ONLY if options.get("metadata_only") else None
        pages = ListPages(params, size=options.get("page_size", list_pages.SIZE))

        async def page() -> tuple[Items[T], ListMeta]:
            async with (
                self.receive(
                    "GET", path, params=pages.params, headers=headers, verb="LIST", flow=resource.plural
                ) as body,
                self.turn,
            ):
                what = f"GET {path}"
                found, meta = self._decode(body, decode_page, what)
                converted: Items[T] = []
                slicer = Slicer()
                with self._decoding(body, what):
                    for one in found:
                        if (kept := convert(one)) is not None:
                            converted.append(kept)
                        await slicer.tick()
                return converted, meta

        return await pages.read(page)

    async def watch(
        self, resource: Resource, **options: Unpack[WatchOptions]
    ) -> AsyncGenerator[WatchEvent, None]:
        """Watch a collection and yield single events; see ``watch_batches``."""
        async with contextlib.aclosing(self.watch_batches(resource, **options)) as batches:
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self, resource: Resource, **options: Unpack[WatchOptions]
    ) -> AsyncGenerator[Batch, None]:
        """Watch a collection and yield the events of each network read, in batches of at most 64.

        The first batch is empty and means that the server has accepted the watch; the first event may take a
        minute. The iterator ends when the server closes the watch, usually after ``timeout_seconds``.

        Raises:
            Expired: the resourceVersion is too old; list again.
            ConnectionFailed: the connection broke or was silent for ``read_timeout`` seconds.
            ResponseTooLarge: an event exceeds a limit.
            ApiError: the server refused the watch or sent an error event.
        """
        seconds = options.get("timeout_seconds", _DEFAULT_WATCH)
        params = _params(options) | {"watch": "1", "timeoutSeconds": str(max(1, int(seconds)))}
        if options.get("allow_bookmarks", True):
            params["allowWatchBookmarks"] = "true"
        path = resource.path(namespace=options.get("namespace"))
        async with self.stream(
            "GET",
            path,
            params=params,
            read_timeout=options.get("read_timeout", seconds + _WATCH_GRACE),
            head_timeout=self.timeout,
            verb="WATCH",
            flow=resource.plural,
        ) as response:
            yield []
            splitter = LineSplitter(self.reader.limits.line)
            while chunk := await self._read(response):
                try:
                    lines = splitter.feed(chunk)
                except LineTooLong as error:
                    raise self.reader.line_too_long(f"WATCH {path}") from error
                for start in range(0, len(lines), _BATCH):
                    events, failure = self._events(lines[start : start + _BATCH], f"WATCH {path}")
                    if events:
                        yield events
                    if failure is not None:
                        raise failure
            if splitter.has_rest:
                raise ConnectionFailed(f"{self.config.server}: the watch ended in the middle of an event")

    async def version(self, *, timeout: float = 5.0) -> dict[str, Any]:  # noqa: ASYNC109 - of the request
        """Return the content of the server's ``/version``."""
        return await self.read("/version", timeout=timeout)

    async def ping(self, *, timeout: float) -> None:  # noqa: ASYNC109 - of the request
        """Check that the server is ready; without permission for ``/readyz``, request ``/version`` instead.

        Raises:
            ApiError: the server is not ready.
        """
        try:
            await self.request("GET", "/readyz", timeout=timeout)
        except Unavailable:
            raise
        except ApiError:
            await self.version(timeout=timeout)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        try:
            return await self.reader.next_chunk(response)
        except NETWORK_ERRORS as error:
            raise self.failure(error) from error

    def _events(self, lines: Lines, what: str) -> tuple[Batch, ApiError | None]:
        """Return the events before the first error, and the error; None if there is none."""
        events: Batch = []
        try:
            for line in lines:
                events.append(self._decode(line, decode_watch_event, what))
        except ApiError as error:
            return events, error
        return events, None

    def __repr__(self) -> str:
        return f"<Client {self.cluster} {self.config.server}>"


def _unchanged(one: T) -> T:
    return one


def _params(options: ListOptions | WatchOptions) -> dict[str, str]:
    selectors = {
        "labelSelector": options.get("label_selector"),
        "fieldSelector": options.get("field_selector"),
    }
    params = {name: text for name, text in selectors.items() if text}
    version = options.get("resource_version")
    return params if version is None else {**params, "resourceVersion": version}
