"""Reads of collections: the pages of a list, the lines of a watch, and their decoding into objects. No requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

import msgspec

from controller_runtime.apimachinery.decoding import decode, decoder
from controller_runtime.errors import Expired, ResponseTooLarge, ResponseTooSlow, error_from_status
from controller_runtime.objects import Fields, Object, WatchEvent, assemble

T = TypeVar("T")
SIZE = 500
METADATA_ONLY = {
    "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
}
"""Header of a list that returns only the metadata of the objects, or complete objects from a server that cannot do this."""
_MOST = 10_000
"""Maximum pages of a list, because a server could return continue tokens without end."""
_QUICK, _PAUSE = 200, 0.05
_SMALLER = 5
"""The page size is divided by this after a page that exceeds a limit or its time: 500, 100, 20, 4, 1."""


def decode_list(raw: bytes, *, api_version: str = "", kind: str = "") -> tuple[Iterator[Object], ListMeta]:
    """Return the items and metadata of a list; items get the apiVersion and kind that servers omit.

    Each item is decoded when it is taken, so that the caller can yield to other tasks between them: a page of a hostile
    server may have 200,000 items, and all would occupy the event loop for a quarter of a second.

    Raises:
        msgspec.DecodeError: not JSON, or not a list of objects. Also raised when an item is taken.
    """
    wire = _decode_list(raw)
    kind = wire.kind.removesuffix("List") or kind
    api_version = wire.apiVersion or api_version
    items = (assemble(fields, api_version=api_version, kind=kind) for fields in wire.items or ())
    return items, wire.metadata


def page_decoder(kind: type[T]) -> Callable[[bytes], tuple[list[T], ListMeta]]:
    """Return a function that decodes the items of a list to a type, such as a TypedDict of the fields in use.

    Other fields are skipped, which takes a third of the time of decoding them.
    """
    read = decoder(_PageWire[kind])  # type: ignore[valid-type]

    def decode_page(raw: bytes) -> tuple[list[T], ListMeta]:
        page = read(raw)
        return page.items or [], page.metadata

    return decode_page


def decode_watch_event(line: bytes) -> WatchEvent:
    """Return the event of one line of a watch.

    Raises:
        ApiError: the line is an ERROR; the exception carries its Status (410 is ``Expired``).
        msgspec.DecodeError: not JSON, or not a watch event.
    """
    wire = _decode_event(line)
    if wire.type == "ERROR":
        raise error_from_status({name: decode(raw) for name, raw in wire.object.items()})
    return WatchEvent(wire.type, assemble(wire.object))


class ListMeta(
    msgspec.Struct,
    rename={
        "continue_": "continue",
        "resource_version": "resourceVersion",
        "remaining": "remainingItemCount",
    },
):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = ""
    remaining: int | None = None


class _ListWire(msgspec.Struct):
    items: list[Fields] | None
    """Required, so that other JSON is not read as an empty collection; null if there are no items."""
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the wire's name


class _PageWire(msgspec.Struct, Generic[T]):
    items: list[T] | None
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)


class _EventWire(msgspec.Struct, gc=False):
    type: str
    object: Fields


_decode_list = decoder(_ListWire)
_decode_event = decoder(_EventWire)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A list and the resourceVersion to watch from."""

    items: list[Object]
    resource_version: str


class ObjectSelection(TypedDict, total=False):
    """The objects of a list, watch or informer."""

    namespace: str | None
    """The namespace; None: all."""
    label_selector: str | None
    """As kubectl's ``-l``."""
    field_selector: str | None
    """As kubectl's ``--field-selector``."""


class ListOptions(ObjectSelection, total=False):
    """Options of ``Client.list`` and ``Client.list_as``."""

    page_size: int
    """Objects per request (500); 0: all in one."""
    resource_version: str | None
    """The API parameter; None: the newest."""
    metadata_only: bool
    """Whether the objects have no spec and status (false)."""


class ListPages:
    """The requests of one list.

    When a continue token expires (410), the complete list is read once without pages. A page that exceeds a
    response limit, or that a slow network does not deliver in time, is requested again with fewer objects.

    Attributes:
        params: the query of the next request.
    """

    def __init__(self, params: Mapping[str, str], *, size: int) -> None:
        """Start a list with its first page of ``size`` objects; 0: no paging."""
        self._query = dict(params)
        self._size = size
        self._most = size or SIZE
        self._number = 1
        self._expired: Expired | None = None
        self.params = {**params, "limit": str(size)} if size else dict(params)

    async def read(self, page: Callable[[], Awaitable[tuple[list[T], ListMeta]]]) -> tuple[list[T], str]:
        """Return all objects and the resourceVersion; ``page`` reads the page of ``params``.

        Raises:
            ResponseTooLarge: a single object exceeds a limit.
            ApiError: any other failure.
        """
        items: list[T] = []
        while True:
            try:
                found, meta = await page()
            except Expired as error:
                self.restart(error)
                items = []
                continue
            except (ResponseTooLarge, ResponseTooSlow) as error:
                self.shrink(error)
                continue
            items += found
            if not meta.continue_:
                return items, meta.resource_version
            self.follow(meta.continue_)
            await asyncio.sleep(self.pause)

    def follow(self, token: str) -> None:
        """Set ``params`` for the next page.

        Raises:
            ResponseTooLarge: the list has too many pages.
        """
        self._number += 1
        if self._number > _MOST:
            raise ResponseTooLarge(f"the list has more than {_MOST:,} pages")
        # Grow again, because the next objects may be smaller, and a list may have at most ``_MOST`` pages.
        self._size = min(self._most, self._size * 2)
        self.params = {**self._query, "limit": str(self._size), "continue": token}
        self.params.pop("resourceVersion", None)

    @property
    def pause(self) -> float:
        """Return the seconds to wait before the next request; 0 for the first 200 pages of a list."""
        return _PAUSE if self._number > _QUICK else 0.0

    def restart(self, error: Expired) -> None:
        """Set ``params`` for the complete list without pages after a continue token expired; earlier pages are invalid.

        Raises:
            Expired: the given error, if the request had no token or the list was already restarted.
        """
        if "continue" not in self.params or self._expired is not None:
            raise error
        self._expired = error
        self.params = self._query

    def shrink(self, error: ResponseTooLarge | ResponseTooSlow) -> None:
        """Set ``params`` for the same page with fewer objects.

        Raises:
            ResponseTooLarge, ResponseTooSlow: the given error, if the page has a single object.
            Expired: the complete list is too large, and its pages expire faster than they can be read.
        """
        if self._size == 1:
            raise error
        if "limit" not in self.params and self._expired is not None:
            raise self._expired from error
        self._size = max(1, (self._size or SIZE) // _SMALLER)
        if isinstance(error, ResponseTooSlow):
            # The network stays slow, and each attempt takes the whole time of a request.
            self._most = self._size
        self.params = {**self.params, "limit": str(self._size)}


class LineTooLong(Exception):  # noqa: N818 - the sender's error
    """A line is longer than the limit."""


class LineSplitter:
    """Returns the complete lines of each chunk; chunks may be cut anywhere."""

    def __init__(self, limit: int) -> None:
        """Create a splitter with a maximum of bytes for one line."""
        self._limit = limit
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, without their line feeds and without blank lines.

        Raises:
            LineTooLong: a line exceeds the limit.
        """
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._keep(tail)
            return []
        lines = head.split(b"\n")
        if self._rest:
            self._keep(lines[0])
            lines[0] = bytes(self._rest)
            self._rest = bytearray()
        self._keep(tail)
        if len(head) > self._limit and any(len(line) > self._limit for line in lines):
            raise LineTooLong
        return [line for line in lines if line]

    def _keep(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self._limit:
            raise LineTooLong

    @property
    def has_rest(self) -> bool:
        """Report whether there is an incomplete line."""
        return bool(self._rest)
