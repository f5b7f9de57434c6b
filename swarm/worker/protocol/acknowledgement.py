"""The acknowledgement: a worker's report to the controller. No IO."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from swarm.worker.jobs.state import Held
from swarm.worker.protocol.share import Applied

_ROOM = 200 * 1024
"""Bytes of JSON for lists of jobs; an object may have 256 KiB of annotations."""
_MOST_ERRORS, _LONGEST_ERROR = 20, 200


def acknowledgement(
    applied: Applied,
    held: Mapping[str, Held],
    *,
    pod_uid: str,
    session: str,
    life: int,
    draining: bool,
    stopped: frozenset[str],
) -> dict[str, Any]:
    """Return the content of an acknowledgement. It guarantees that only jobs in ``running`` run.

    Args:
        applied: the accepted share.
        held: jobs that run or may run.
        pod_uid: UID of this worker's pod.
        session: session of this worker.
        life: number that orders the sessions of a pod.
        draining: whether the worker is stopping and starts no more jobs.
        stopped: jobs with state ``stop`` in the last share.
    """
    failing = {name: one.error[:_LONGEST_ERROR] for name, one in sorted(held.items()) if one.error}
    running: dict[str, Any] = {"running": sorted(held)}
    room = _ROOM - len(compact(running))
    if room < 0:
        running = {"running": None, "runningCount": len(held)}
        room = _ROOM
    return {
        "podUID": pod_uid,
        "session": session,
        "life": life,
        "version": applied.version,
        **running,
        "failing": dict(list(failing.items())[:_MOST_ERRORS]),
        "draining": draining,
        "fenceSeconds": applied.fence_seconds,
        "stopped": _that_fit(sorted(stopped - held.keys()), room),
    }


def compact(content: Any) -> str:
    """Return JSON without spaces, in ASCII."""
    return json.dumps(content, separators=(",", ":"))


def _that_fit(names: list[str], room: int) -> list[str]:
    """Return the first names that fit into ``room`` bytes of JSON. Later acknowledgements contain the other names."""
    sizes = itertools.accumulate(len(compact(name)) + 1 for name in names)
    return [name for name, size in zip(names, sizes, strict=True) if size <= room]
