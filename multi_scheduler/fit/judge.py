"""Predicts the lower nodes of a pod in all lower clusters, without reserving room. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.api import cluster_selector, names
from controller_runtime.api.pod.conditions import claim_names
from multi_scheduler.agent import VirtualNode
from multi_scheduler.config import SchedulerClusterConfig
from multi_scheduler.fit import reasons
from multi_scheduler.fit.admission.gate import AdmissionGate, Allowed, GateResult
from multi_scheduler.fit.admission.predictor import Admission
from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_requirements import Demand, demand
from multi_scheduler.fit.cluster.scoring import predict
from multi_scheduler.fit.feeds.cluster_feed import Feed
from multi_scheduler.fit.judgement import Judgement
from multi_scheduler.fit.reservations.reservations import Place
from multi_scheduler.fit.settings import FitSettings


class Judge:
    """Predicts admission and lower nodes.

    Args:
        settings: settings of the fit agent.
        clusters: configuration by lower cluster.
        indexes: indexes by lower cluster.
        admissions: admission rules by lower cluster.
        feeds: feeds by lower cluster; a node of another cluster passes.
    """

    def __init__(
        self,
        settings: FitSettings,
        clusters: Mapping[str, SchedulerClusterConfig],
        indexes: Mapping[str, ClusterIndex],
        admissions: Mapping[str, Admission],
        feeds: Mapping[str, Feed],
    ) -> None:
        self._settings = settings
        self._indexes = indexes
        self._feeds = feeds
        allowed = Allowed()
        self.gates = {
            cluster: AdmissionGate(
                clusters.get(cluster) or SchedulerClusterConfig(name=cluster, kubeconfig=""),
                admission,
                enforces=settings.admission == "Reject",
                allowed=allowed,
            )
            for cluster, admission in admissions.items()
        }

    def judge(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Judgement:
        """Predict the pod's lower node behind each virtual node, or the reason for rejection."""
        found = Judgement()
        demands: dict[Any, Demand] = {}
        differs = bool(claim_names(pod))
        text = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_CLUSTER_SELECTOR) or ""
        for node in nodes:
            feed = self._feeds.get(node.cluster)
            if feed is None:
                continue  # not a configured lower cluster, so the node passes
            if trouble := feed.trouble():
                if self._settings.unreachable == "Reject":
                    found.unresolvable[node.name] = (
                        f"lower cluster {node.cluster} cannot be looked into: {trouble}"
                    )
                continue
            gated = self.gates[node.cluster].judge(pod, node)
            if gated.refusal:
                found.unresolvable[node.name] = gated.refusal
                found.counted_by = max(found.counted_by, gated.counted_by)
                if gated.may_change:
                    found.retryable.append((node.cluster, None))
                continue
            # Virtual nodes share a demand unless their pools, lower namespaces, rules, volumes or upper terms differ.
            key = (repr(node.pool), gated.demand_key)
            wanted = demands.get(key)
            if wanted is None or differs or cluster_selector.UPPER_TERMS in text:
                wanted = demands[key] = self.demand(gated, node)
            rejections: Counter[str] = Counter()
            index = self._indexes[node.cluster]
            if slots := index.feasible(wanted, rejections):
                predicted = found.judged[node.name] = predict(index, wanted, slots, self._settings.lower)
                found.places[node.name] = Place(node.cluster, predicted.place, gated.charge)
            else:
                sentence = f"lower cluster {node.cluster}: {reasons.no_fit(len(index), rejections)}"
                rejected = found.resolvable if reasons.is_resolvable(rejections) else found.unresolvable
                rejected[node.name] = sentence
                found.retryable.append((node.cluster, wanted))
        return found

    def demand(self, gated: GateResult, node: VirtualNode) -> Demand:
        """Return an admitted pod's requirements for the lower nodes behind a virtual node."""
        feed, pod = self._feeds[node.cluster], gated.pod
        namespace = pod["metadata"].get("namespace", "")
        volumes = [
            found
            for claim in claim_names(pod)
            if (found := feed.volume_affinity(namespace, claim)) is not None
        ]
        return demand(
            pod, gated.rules, node_name=node.name, node_labels=node.labels, pool=node.pool, volumes=volumes
        )
