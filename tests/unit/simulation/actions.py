"""What can happen in a simulation, and who makes it happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from controller_runtime.errors import NotFound

if TYPE_CHECKING:
    from tests.unit.simulation.world import World

T = TypeVar("T")
Action = Callable[[], str | Awaitable[str]]
"""Returns what it was; empty, or with an ``ApiError``: nothing."""


class Actor:
    """A simulated client; its public methods are actions, which the seed of the world chooses."""

    _weights: ClassVar[Mapping[str, float]] = {}
    """Weights of actions that are chosen more or less often than others, by name."""

    def __init__(self, world: World) -> None:
        self._world, self._chance = world, world.chance

    def actions(self) -> dict[Action, float]:
        names = [name for name in vars(type(self)) if not name.startswith("_")]
        return {getattr(self, name): self._weights.get(name, 1) for name in names}

    def _any(self, found: Sequence[T]) -> T:
        """Return one of these.

        Raises:
            NotFound: there is none, so that the action ends.
        """
        if not found:
            raise NotFound("nothing to choose from", code=404)
        return self._chance.choice(found)
