"""The oracle of stories with a fault: the end state, and the creates and deletes per object, of a run without faults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Commit
from tests.unit.simulation.bodies import is_ending
from tests.unit.simulation.watchdog import OURS, PERIODIC

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_VOLATILE = frozenset({"resourceVersion", "creationTimestamp", "generation", "observedGeneration"})
"""Metadata that counts writes: a retry that changes nothing else is allowed."""


class Ledger:
    """Counts what our processes create and delete, and remembers how a server ended."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self._servers = list(servers)
        self.counts: Counter[str] = Counter()
        """``create``, ``delete`` (the first deletion of that object) and ``remove`` (it is gone) per server and object."""
        for server in self._servers:
            server.observers.append(lambda commit, name=server.name: self._count(name, commit))  # type: ignore[misc]

    def state(self) -> dict[str, Any]:
        """Every object of every server, without what differs from run to run."""
        return {
            f"{server.name} {plural} {key}": _comparable(body)
            for server in self._servers
            for plural, bodies in sorted(server.objects.items())
            if plural not in PERIODIC
            for key, body in sorted(bodies.items())
        }

    def _count(self, server: str, commit: Commit) -> None:
        if not commit.who.startswith(OURS) or commit.plural in PERIODIC:
            return
        what = f"{server} {commit.plural} {commit.key}"
        if commit.old is None:
            self.counts[f"create {what}"] += 1
        elif commit.new is None and commit.verb == "delete":
            self.counts[f"remove {what}"] += 1
        if commit.old is not None and not is_ending(commit.old) and commit.verb == "delete":
            self.counts[f"delete {what}"] += 1


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each difference between two states or two counts."""
    for key in sorted({*expected, *found}):
        if expected.get(key) != found.get(key):
            yield from _differences(key, expected.get(key), found.get(key))


def _differences(where: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}):
            if expected.get(key) != found.get(key):
                yield from _differences(f"{where}.{key}", expected.get(key), found.get(key))
    else:
        yield f"{where}: {str(found)[:200]} instead of {str(expected)[:200]}"


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _comparable(one) for key, one in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return _TIME.sub("<time>", value) if isinstance(value, str) else value
