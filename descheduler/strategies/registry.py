"""Every strategy there is: ours, and those that other packages register."""

from __future__ import annotations

from importlib import metadata

from controller_runtime.errors import ConfigError
from descheduler.strategies.base import Strategy
from descheduler.strategies.duplicates import Duplicates
from descheduler.strategies.imbalance import Imbalance
from descheduler.strategies.pod_life_time import PodLifeTime
from descheduler.strategies.pressure import Pressure
from descheduler.strategies.stale_cluster import StaleCluster
from descheduler.strategies.unschedulable import Unschedulable

GROUP = "virtual_node.descheduler"
"""Entry points of this group are strategies; each names a ``Strategy`` subclass."""

_OURS: tuple[type[Strategy], ...] = (
    Unschedulable, PodLifeTime, StaleCluster, Imbalance, Duplicates, Pressure,
)  # fmt: skip


def strategies(*, ours: bool = False) -> dict[str, type[Strategy]]:
    """All strategies by name.

    Args:
        ours: leave out those of other packages.

    Raises:
        ConfigError: a registered one cannot be loaded, or is none; names it.
    """
    found: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _OURS}
    for entry in () if ours else metadata.entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            raise ConfigError(f"strategy {entry.name} ({entry.value}) cannot be loaded: {error}") from error
        if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
            raise ConfigError(f"strategy {entry.name} ({entry.value}) is no Strategy subclass")
        found[loaded.name] = loaded
    return found


def known_names(found: dict[str, type[Strategy]]) -> dict[str, str]:
    """Every name in policy files, and the name it is registered under."""
    names = {alias: name for name, strategy in found.items() for alias in strategy.aliases}
    return names | {name: name for name in found}
