"""Decides in which lower namespaces an object with our labels is believed to be ours. No IO.

A user of a lower cluster can copy our labels and annotations to objects in the user's own namespaces. So these prove
ownership only in a lower namespace that stands for the upper namespace of the object: the Namespace has our marks, which
only virtual-node and administrators of the lower cluster can write, or the configuration adopts it. Everywhere else an
object is not ours, whatever labels it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clusterset.model import namespace_map
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.objects import Object
from virtual_node.translate.base import ownership
from virtual_node.translate.objects import namespaces


@dataclass(eq=False)
class Places:
    """The lower namespaces of one lower cluster that stand for namespaces of our upper cluster."""

    cluster_id: str
    """Identity of the upper cluster."""
    namespace_map: NamespaceMap
    adopt: bool | Sequence[str] = False
    """``namespaces.adopt``: existing lower namespaces that may be used."""
    _owned: dict[str, frozenset[str]] = field(default_factory=dict)
    """By lower namespace that we created, the upper namespaces in its marks; empty name: the mark has none."""
    is_used: Callable[[str, str], bool] = lambda _namespace, _upper_namespace: False
    """Reports whether a lower namespace has our pods of an upper one; empty: of any. Such pods may be older than a
    change of the configuration, and still need the objects that they use."""
    _listeners: list[Callable[[str], None]] = field(default_factory=list)

    def on_new(self, call: Callable[[str], None]) -> None:
        """Register a function to call with each lower namespace that gets other marks."""
        self._listeners.append(call)

    def note(self, namespace: namespaces.Named) -> None:
        """Remember the marks of a lower namespace as the lower cluster has it."""
        marked = frozenset(
            upper
            for cluster_id, upper in namespace_map.marks(namespace.labels, namespace.annotations)
            if cluster_id == self.cluster_id
        )
        if marked == self._owned.get(namespace.name, frozenset()):
            return
        if not marked:
            self.forget(namespace.name)
            return
        self._owned[namespace.name] = marked
        for call in self._listeners:
            call(namespace.name)

    def forget(self, namespace: str) -> None:
        """Forget a lower namespace that is gone or no longer has our marks."""
        self._owned.pop(namespace, None)

    def stands_for(self, namespace: str, upper_namespace: str) -> bool:
        """Report whether our objects for an upper namespace may be in that lower namespace.

        A marked namespace stands for the upper namespace in its marks, also after a change of ``namespaces.prefix`` or
        ``namespaces.map``. All others stand only for the upper namespace that is mapped to them.
        """
        if marked := self._owned.get(namespace):
            return upper_namespace in marked or (
                marked == {""} and self.namespace_map(upper_namespace) == namespace
            )
        return (
            namespace_map.adopts(namespace, self.adopt)
            and self.namespace_map(upper_namespace) == namespace
            and not self.namespace_map.conflicting_upper(upper_namespace)
        )

    def is_in_place(self, lower: Object) -> bool:
        """Report whether an object with our labels is where we put the objects of its upper namespace."""
        return self.holds(lower.namespace, ownership.upper_namespace(lower))

    def holds(self, namespace: str, upper_namespace: str) -> bool:
        """Report whether objects for an upper namespace in that lower namespace are ours."""
        return self.stands_for(namespace, upper_namespace) or self.is_used(namespace, upper_namespace)

    def has(self, namespace: str) -> bool:
        """Report whether a lower namespace stands for any upper namespace, or has our pods."""
        is_usable = namespace in self._owned or namespace_map.adopts(namespace, self.adopt)
        return is_usable or self.is_used(namespace, "")
