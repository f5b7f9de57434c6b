"""The cost agent: prefers the lower cluster where the pod's requests cost least. A configured order takes precedence.

Prices are per hour, for one CPU and one GiB. The first source with a price is used: labels of the lower node, labels of
the virtual node, the configuration, the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from clusterset.model import names
from controller_runtime import log
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import convert, decode_yaml
from controller_runtime.errors import ConfigError
from controller_runtime.util.file_changes import FileChanges
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import AskedPod, ViewAgent
from multi_scheduler.numeric import NEUTRAL
from multi_scheduler.virtual_node import VirtualNode

_GIB = 1024**3


Amount = Annotated[float, Meta(ge=0)]


class Price(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Price per hour, in any currency."""

    cpu: Amount = 0.0
    """Price of one CPU."""
    memory: Amount = 0.0
    """Price of one GiB."""


def hourly(requests: Mapping[str, int], price: Price, *, discount: float = 0.0) -> float:
    """Return the cost of a pod's requests per hour.

    Args:
        requests: CPU in millicores, memory in bytes.
        price: price of the node.
        discount: 0 to 1, for preemptible nodes.
    """
    whole = requests.get("cpu", 0) / 1000 * price.cpu + requests.get("memory", 0) / _GIB * price.memory
    return whole * (1 - discount)


def scores(costs: Mapping[str, float | None], ranks: Mapping[str, int] | None = None) -> dict[str, float]:
    """Return scores by node: 1 for the cheapest of the first rank. Every rank scores higher than all later ranks.

    Args:
        costs: cost by node; None: unknown, which gets the middle of the rank's scores.
        ranks: rank by node, 0 is first; nodes without a rank are last.
    """
    ranks = ranks or {}
    last = max(ranks.values(), default=-1) + 1
    of = {name: ranks.get(name, last) for name in costs}
    present = sorted(set(of.values()))
    cheapest: dict[int, float] = {}
    for name, cost in costs.items():
        if cost is not None:
            cheapest[of[name]] = min(cost, cheapest.get(of[name], cost))
    found = {}
    for name, cost in costs.items():
        within = NEUTRAL
        if cost is not None:
            # Even the most expensive node of a rank scores higher than later ranks.
            within = 0.01 + 0.99 * (cheapest[of[name]] / cost if cost > 0 else 1.0)
        found[name] = (len(present) - 1 - present.index(of[name]) + within) / len(present)
    return found


_MOST = 1e12
"""Largest accepted price in a label. Infinite prices could not be compared."""
_POLL = 10.0
"""Seconds between checks of the file."""
_AVOIDED = 1000
"""Added to the rank of preemptible nodes for pods that ``podSelector`` does not select."""


class Preemptible(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Lower nodes that the cloud provider may reclaim."""

    node_selector: dict[str, str]
    """Labels of these nodes."""
    pod_selector: dict[str, Any] = {}
    """LabelSelector of the pods that may run on these nodes; for other pods these nodes score lowest. Empty: all pods."""
    discount: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Discount on the price, 0 to 1."""


class CostSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    prices: dict[str, Price] = {}
    """Prices by lower cluster."""
    file: str = ""
    """A YAML file in the form of ``prices``, reloaded when it changes."""
    priority: list[str] = []
    """Lower clusters in order of preference, regardless of cost, also without a price; others come last."""
    preemptible: Preemptible | None = None


class CostAgent(ViewAgent[CostSettings]):
    """Scores by cost; does not filter."""

    settings_type = CostSettings

    def __init__(self, context: AgentContext) -> None:
        """Read the settings and the file.

        Raises:
            ConfigError: a setting or the file is wrong.
        """
        super().__init__(context)
        self._name = context.name
        self._ranks = {cluster: rank for rank, cluster in enumerate(self._settings.priority)}
        self._prices = self._read_prices()
        self._log = log.get_logger(component="cost")
        try:
            selector = self._settings.preemptible.pod_selector if self._settings.preemptible else {}
            self._may_be_preempted = matching.compile_selector(selector)
        except ValueError as error:
            raise ConfigError(f"agents[{context.name}].config: preemptible.podSelector: {error}") from None

    async def run(self) -> None:
        """Reload the file when it changes, until cancelled."""
        if not self._settings.file:
            await super().run()
        files = {"prices": self._settings.file}
        changes = FileChanges(files)
        while True:
            await asyncio.sleep(_POLL)
            if changes.changed(files):
                try:
                    self._prices = self._read_prices()
                    self._log.info("prices reloaded", file=self._settings.file)
                except ConfigError as error:
                    self._log.error("prices not applied", error=str(error))

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return scores by rank and cost; nodes without a price get the middle of the scores of their rank."""
        asked = AskedPod(pod)
        costs: dict[str, float | None] = {}
        ranks = {}
        last = len(self._ranks)
        for node in nodes:
            lower = next(iter(self._view.nodes(pod, node)), None)
            labels = lower.labels if lower is not None else {}
            price = price_of(labels, node, self._prices)
            rank, discount = self._ranks.get(node.cluster, last), 0.0
            found = self._settings.preemptible
            if found is not None and found.node_selector.items() <= labels.items():
                if self._may_be_preempted(pod["metadata"].get("labels") or {}):
                    discount = found.discount
                else:
                    rank += _AVOIDED
            costs[node.name] = hourly(asked.requests, price, discount=discount) if price else None
            ranks[node.name] = rank
        return scores(costs, ranks)

    def _read_prices(self) -> dict[str, Price]:
        """Return the prices by cluster: those of the file, replaced by those of the settings."""
        if not self._settings.file:
            return self._settings.prices
        try:
            text = Path(self._settings.file).read_text(encoding="utf-8")
            return convert(decode_yaml(text) or {}, dict[str, Price]) | self._settings.prices
        except (OSError, ValueError) as error:
            raise ConfigError(f"agents[{self._name}].config: file: {self._settings.file}: {error}") from None


def price_of(labels: Mapping[str, str], node: VirtualNode, configured: Mapping[str, Price]) -> Price | None:
    """Return the price by a lower node's labels, the virtual node's labels, or its cluster; None: unknown."""
    return _labelled(labels) or _labelled(node.labels) or configured.get(node.cluster)


def _labelled(labels: Mapping[str, str]) -> Price | None:
    """Return the price in a node's labels; None: missing or invalid."""
    if names.LABEL_PRICE_CPU not in labels and names.LABEL_PRICE_MEMORY not in labels:
        return None
    try:
        price = Price(
            float(labels.get(names.LABEL_PRICE_CPU, "0")), float(labels.get(names.LABEL_PRICE_MEMORY, "0"))
        )
    except ValueError:
        return None
    return price if 0 <= price.cpu <= _MOST and 0 <= price.memory <= _MOST else None
