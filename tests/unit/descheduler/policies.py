"""Policies for tests."""

from __future__ import annotations

from typing import Any

import yaml

from descheduler import config as policy
from descheduler.config import Policy
from descheduler.strategies import registry

KNOWN = registry.known_names(registry.strategies())


TENSILE = """
apiVersion: "descheduler/v1alpha1"
kind: "DeschedulerPolicy"
strategies:
  "PodLifeTime":
     enabled: true
     params:
        maxPodLifeTimeSeconds: 180
"""


V1ALPHA2 = """
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
nodeSelector: zone=z
maxNoOfPodsToEvictPerNode: 5
maxNoOfPodsToEvictPerNamespace: 6
maxNoOfPodsToEvictTotal: 7
profiles:
- name: one
  pluginConfig:
  - name: DefaultEvictor
    args: {evictLocalStoragePods: true, ignorePvcPods: true, nodeFit: true}
  - name: PodLifeTime
    args: {maxPodLifeTimeSeconds: 60, states: [Pending, ImagePullBackOff], namespaces: {exclude: [x]}}
  - name: StaleCluster
    args: {staleAfterSeconds: 40}
  - name: LowNodeUtilization
    args: {apiVersion: a/b, kind: Args, thresholds: {cpu: 10}, targetThresholds: {cpu: 50}}
  plugins:
    deschedule: {enabled: [PodLifeTime, StaleCluster]}
    balance: {enabled: [LowNodeUtilization, Duplicates]}
    filter: {enabled: [DefaultEvictor]}
"""


def parse(text: str) -> Policy:
    """Return the policy of a YAML text."""
    return policy.parse(yaml.safe_load(text), known=KNOWN)


def v1(**fields: Any) -> dict[str, Any]:
    """Return a v1alpha1 document."""
    return {"apiVersion": "descheduler/v1alpha1", "kind": "DeschedulerPolicy", **fields}
