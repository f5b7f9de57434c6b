"""Decides which page of a list to request next, after a page and after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from controller_runtime.client.decoding import ListMeta
from controller_runtime.errors import Expired, ResponseTooLarge
from controller_runtime.objects import Object

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
"""The page size is divided by this after a page that exceeds a limit: 500, 100, 20, 4, 1."""


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
    response limit is requested again with fewer objects.

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
            except ResponseTooLarge as error:
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

    def shrink(self, error: ResponseTooLarge) -> None:
        """Set ``params`` for the same page with fewer objects.

        Raises:
            ResponseTooLarge: the given error, if the page has a single object.
            Expired: the complete list is too large, and its pages expire faster than they can be read.
        """
        if self._size == 1:
            raise error
        if "limit" not in self.params and self._expired is not None:
            raise self._expired from error
        self._size = max(1, (self._size or SIZE) // _SMALLER)
        self.params = {**self.params, "limit": str(self._size)}
