"""Which upper namespaces each namespace selector matches, evaluated once for all objects with the same selector.

A tenant writes the selectors, and each is compared with the labels of all upper namespaces. So an object and a namespace
may have a limited number of different selectors, a new one is compared in slices, and after a change of a namespace
only this namespace is compared again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from controller_runtime.apimachinery.matching import Matcher, compile_selector
from controller_runtime.util.event_loop import Slicer
from virtual_node.translate.base.view import MOST_SELECTORS_OF_NAMESPACE, Labels, Selector, selector_code

_MOST_CHANGES = 1000
"""Number of changes that are kept at least, so that selectors can be brought up to date."""
_AT_ONCE = 100
"""Namespaces that are compared with a selector before other tasks may run."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A selector and the namespaces that it matches."""

    matches: Matcher
    names: int = 0
    """Bit ``n`` is set if the namespace with number ``n`` matches."""
    version: int = -1
    """Number of changes of namespaces that ``names`` contains; -1: not evaluated yet."""
    users: int = 0
    """Number of objects that have the selector."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Names(Collection[str]):
    """Names of the set bits. The length is known without the names, because most selections are too long or empty."""

    bits: int
    names: Sequence[str]

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[str]:
        if not self.bits:
            return iter(())
        return (name for bit, name in zip(reversed(f"{self.bits:b}"), self.names, strict=False) if bit == "1")

    def __contains__(self, name: object) -> bool:
        return any(name == other for other in self)


@dataclass(eq=False, repr=False)
class SelectedNamespaces:
    """Keeps the result of each selector that objects have."""

    labels_of: Callable[[str], Labels | None]
    """Returns the labels of an upper namespace; None: it does not exist."""
    is_allowed: Callable[[str], bool]
    """Whether an upper namespace may use the lower cluster; others are never selected."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    """Namespaces by number; empty: the number is free."""
    _free: list[int] = field(default_factory=list)
    _changes: list[int] = field(default_factory=list)
    """Numbers of namespaces that changed, oldest first."""
    _forgotten: int = 0
    """Number of changes before the first one in ``_changes``."""
    _entries: dict[bytes, _Entry] = field(default_factory=dict)
    _held: dict[str, tuple[str, frozenset[bytes]]] = field(default_factory=dict)
    """By object: its namespace and selectors."""
    _counts: dict[str, Counter[bytes]] = field(default_factory=dict)
    """By namespace: how many of its objects have each selector."""

    def changed(self, name: str) -> None:
        """Record that an upper namespace appeared, disappeared, or changed its labels."""
        exists = self.labels_of(name) is not None
        number = self._numbers.get(name)
        if number is None:
            if not exists or not self.is_allowed(name):
                return
            number = self._free.pop() if self._free else len(self._names)
            self._names[number : number + 1] = [name]
            self._numbers[name] = number
        elif not exists:
            del self._numbers[name]
            self._names[number] = ""
            self._free.append(number)
        self._changes.append(number)
        if len(self._changes) > 2 * max(_MOST_CHANGES, len(self._names)):
            count = len(self._changes) // 2
            del self._changes[:count]
            self._forgotten += count

    async def hold(self, user: str, namespace: str, selectors: Iterable[Selector]) -> bool:
        """Evaluate the selectors of an object and keep the results until ``release``.

        Returns:
            False: the objects of the namespace have too many different selectors, so some have no result.

        Raises:
            ValueError: a selector is malformed.
        """
        wanted = {selector_code(selector): selector for selector in selectors}
        compiled = {
            code: compile_selector(selector) for code, selector in wanted.items() if code not in self._entries
        }
        others = self._without(user, namespace)
        room = MOST_SELECTORS_OF_NAMESPACE - len(others)
        admitted = []
        for code in wanted:
            if code not in others:
                room -= 1
            if code in others or room >= 0:
                admitted.append(code)
        before = self._held.get(user)
        for code in admitted:
            if code not in self._entries:
                self._entries[code] = _Entry(compiled[code])
            self._entries[code].users += 1
            self._counts.setdefault(namespace, Counter())[code] += 1
        if before is not None:
            self._drop(*before)
        if admitted:
            self._held[user] = (namespace, frozenset(admitted))
        else:
            self._held.pop(user, None)
        slicer = Slicer()
        for code in admitted:
            if (entry := self._entries.get(code)) is not None:
                await self._evaluate(entry, slicer)
        return len(admitted) == len(wanted)

    def release(self, user: str) -> None:
        """Forget the selectors of an object."""
        if (before := self._held.pop(user, None)) is not None:
            self._drop(*before)

    def select(self, selector: Selector) -> Collection[str] | None:
        """Return the allowed upper namespaces that a selector matches now; None: no object holds the selector.

        Read the result before the next change of a namespace.
        """
        entry = self._entries.get(selector_code(selector))
        if entry is None or entry.version < self._forgotten:
            return None
        self._catch_up(entry)
        return _Names(entry.names, self._names)

    def _without(self, user: str, namespace: str) -> set[bytes]:
        """Return the selectors of the other objects of a namespace."""
        counts = self._counts.get(namespace) or Counter()
        _, own = self._held.get(user, ("", frozenset[bytes]()))
        return {code for code, count in counts.items() if count > (code in own)}

    def _drop(self, namespace: str, codes: Iterable[bytes]) -> None:
        counts = self._counts[namespace]
        for code in codes:
            counts[code] -= 1
            if not counts[code]:
                del counts[code]
            entry = self._entries[code]
            entry.users -= 1
            if not entry.users:
                del self._entries[code]
        if not counts:
            del self._counts[namespace]

    async def _evaluate(self, entry: _Entry, slicer: Slicer) -> None:
        async with entry.lock:
            while entry.version < self._forgotten + len(self._changes):
                if entry.version >= self._forgotten:
                    self._catch_up(entry, _AT_ONCE)
                    await slicer.tick()
                    continue
                # Namespaces that change meanwhile are among the changes since ``version``.
                version, names = self._forgotten + len(self._changes), 0
                for number, name in enumerate([*self._names]):
                    if self._matches(entry, name):
                        names |= 1 << number
                    await slicer.tick()
                entry.names, entry.version = names, version

    def _catch_up(self, entry: _Entry, most: int | None = None) -> None:
        start = entry.version - self._forgotten
        changes = self._changes[start : None if most is None else start + most]
        for number in {*changes}:
            bit = 1 << number
            entry.names = (
                entry.names | bit if self._matches(entry, self._names[number]) else entry.names & ~bit
            )
        entry.version += len(changes)

    def _matches(self, entry: _Entry, name: str) -> bool:
        labels = self.labels_of(name) if name else None
        return labels is not None and entry.matches(labels)
