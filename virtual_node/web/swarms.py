"""Reads Swarms for the page, and only while a browser shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from clusterset.model.names import SWARMS
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from virtual_node.examine.objects import Json, key
from virtual_node.examine.rules.pods import swarm_state

_AGE = 10.0
"""Seconds after which Swarms are read again."""
_ABSENT = 300.0
"""Seconds until the next read if the API server does not know Swarms or forbids the read."""
_STALE = 60.0
"""Seconds without a browser after which the Swarms of the last read are not used."""
_COUNTS = {"workerCount": "workers", "jobCount": "jobs", "runningCount": "running"}
"""Fields of the status, and their names on the page."""
_MOST = 100
"""Maximum number of Swarms that are sent."""


class Swarms:
    """Reads Swarms in the background; never waits for the API server.

    Args:
        client: client of the upper cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: Sequence[Json] | None = None
        self._due = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._log = structlog.get_logger(component="page")

    def known(self) -> Sequence[Json] | None:
        """Return the Swarms of the last read, and start a read if it is due; None: no recent read."""
        now = asyncio.get_running_loop().time()
        if now >= self._due and (self._reading is None or self._reading.done()):
            if now > self._due + _STALE:
                self._known = None
            self._due = now + _AGE
            self._reading = asyncio.create_task(self._read(), name="page swarms")
        return self._known

    async def _read(self) -> None:
        try:
            listed = await self._client.list(SWARMS, transform=_shrink)
        except (Forbidden, NotFound):
            self._known, self._due = (), asyncio.get_running_loop().time() + _ABSENT
        except (ApiError, ConfigError) as error:
            self._log.debug("swarms not read", error=str(error))
        else:
            self._known = [one.to_dict() for one in listed.items]


def _shrink(swarm: Object) -> Object:
    """Reduce a Swarm to the fields that the page shows; others, such as ``status.record``, can have a megabyte."""
    status = swarm.status or {}
    return swarm.without("spec").with_fields(
        status={name: status[name] for name in (*_COUNTS, "conditions") if name in status}
    )


def swarm_table(swarms: Sequence[Json]) -> dict[str, Any]:
    """Return the page's table of Swarms: the first ``_MOST`` rows, problems first, and the total number of Swarms."""
    rows = [_row(swarm) for swarm in swarms]
    rows.sort(key=lambda row: (row["state"] == "converged", row["name"]))
    return {"rows": rows[:_MOST], "all": len(rows)}


def _row(swarm: Json) -> dict[str, Any]:
    status = swarm.get("status") or {}
    counts = {name: status.get(field) or 0 for field, name in _COUNTS.items()}
    return {"name": key(swarm), **counts, "state": swarm_state(swarm)}
