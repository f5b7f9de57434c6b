"""A list, and which page of it to ask for next, after a page and after an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller_runtime.errors import Expired, ResponseTooLarge
from controller_runtime.objects import Object

SIZE = 500
_MOST = 10_000
"""Pages of a list; a server that always names another one would never end."""
_QUICK, _PAUSE = 200, 0.05
_SMALLER = 5
"""Divides the page size after a page that exceeds a limit: from 500, the fourth request is for one object."""


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A list and the resourceVersion to watch from."""

    items: list[Object]
    resource_version: str


class ListPages:
    """The requests of one list.

    A continue token that expires (410) makes the whole list be read once without pages. A page that exceeds a limit
    of responses is asked for again with fewer objects.

    Attributes:
        params: the query of the next request.
    """

    def __init__(self, params: Mapping[str, str], *, size: int) -> None:
        """Set up.

        Args:
            params: the list's query.
            size: objects per page; 0: all at once.
        """
        self._query = dict(params)
        self._size = size
        self._most = size or SIZE
        self._number = 1
        self._expired: Expired | None = None
        self.params = {**params, "limit": str(size)} if size else dict(params)

    def follow(self, token: str) -> None:
        """Ask for the page behind the last one.

        Raises:
            ResponseTooLarge: there have been too many.
        """
        self._number += 1
        if self._number > _MOST:
            raise ResponseTooLarge(f"the list has more than {_MOST:,} pages")
        # What was too large may be behind us: with few objects per page for good, a long list has too many pages.
        self._size = min(self._most, self._size * 2)
        self.params = {**self._query, "limit": str(self._size), "continue": token}
        self.params.pop("resourceVersion", None)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next request: from 100,000 objects on, others get more turns."""
        return _PAUSE if self._number > _QUICK else 0.0

    def restart(self, error: Expired) -> None:
        """Ask for everything at once, because the continue token expired; what came so far is void.

        Raises:
            Expired: the error, where that cannot help.
        """
        if "continue" not in self.params or self._expired is not None:
            raise error
        self._expired = error
        self.params = self._query

    def shrink(self, error: ResponseTooLarge) -> None:
        """Ask for the same page with fewer objects.

        Raises:
            ResponseTooLarge: the error, when the page has a single object.
            Expired: the whole list is too large, and its pages expire sooner than they can be read.
        """
        if self._size == 1:
            raise error
        if "limit" not in self.params and self._expired is not None:
            raise self._expired from error
        self._size = max(1, (self._size or SIZE) // _SMALLER)
        self.params = {**self.params, "limit": str(self._size)}
