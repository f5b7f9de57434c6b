"""Lists all strategies: built-in strategies and those that other packages register."""

from __future__ import annotations

from importlib import metadata

from controller_runtime.errors import ConfigError
from descheduler.strategies.base import Strategy
from descheduler.strategies.drain import Drain
from descheduler.strategies.duplicates import Duplicates
from descheduler.strategies.imbalance import Imbalance
from descheduler.strategies.pressure import Pressure
from descheduler.strategies.stale_cluster import StaleCluster
from descheduler.strategies.unschedulable import PodLifeTime, Unschedulable

GROUP = "virtual_node.descheduler"
"""Entry-point group of strategies; each entry point is a ``Strategy`` subclass."""

_OURS: tuple[type[Strategy], ...] = (
    Unschedulable, PodLifeTime, StaleCluster, Imbalance, Duplicates, Pressure, Drain,
)  # fmt: skip


def strategies(*, ours: bool = False) -> dict[str, type[Strategy]]:
    """Return all strategies by name.

    Args:
        ours: True: only built-in strategies.

    Raises:
        ConfigError: an entry point cannot be loaded or is not a Strategy subclass; the message names it.
    """
    found: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _OURS}
    for entry in () if ours else metadata.entry_points(group=GROUP):
        try:
            loaded = entry.load()
        except Exception as error:
            raise ConfigError(f"strategy {entry.name} ({entry.value}) cannot be loaded: {error}") from error
        if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
            raise ConfigError(f"strategy {entry.name} ({entry.value}) is not a Strategy subclass")
        found[loaded.name] = loaded
    return found


def known_names(found: dict[str, type[Strategy]]) -> dict[str, str]:
    """Return the registered name of each strategy, by name and by alias."""
    names = {alias: name for name, strategy in found.items() for alias in strategy.aliases}
    return names | {name: name for name in found}
