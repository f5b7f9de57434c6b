"""The fields that ``status`` reads of pods, which decide how long a list takes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from controller_runtime.client.collection import page_decoder
from tests.unit.virtual_node.commands.diagnose.healthy_pods import healthy_pod
from tests.unit.virtual_node.commands.diagnose.test_diagnose_corpus import CASES, facts_of
from virtual_node.commands.status.rows import PodFields
from virtual_node.examine.engine import of_pod
from virtual_node.node_summary import summarize, summary_of

_REQUESTS = {
    "containers": [{"name": "main", "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}}}],
    "initContainers": [
        {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}
    ],
    "overhead": {"cpu": "250m"},
    "resources": {"requests": {"memory": "4Gi"}},
    "nodeName": "vn",
}


def test_counts_requests_and_faults_are_those_of_complete_pods():
    """No field that decides a number or a fault is missing."""
    chance = random.Random(1)
    pods: list[Mapping[str, Any]] = [healthy_pod(chance, number)[0] for number in range(200)]
    pods += [pod for case in CASES if (pod := facts_of(case).pod)["spec"].get("nodeName")]
    pods.append({"metadata": {"namespace": "shop", "name": "sum"}, "spec": _REQUESTS, "status": None})
    read, meta = page_decoder(PodFields)(msgspec.json.encode({"metadata": {"continue": "x"}, "items": pods}))
    assert meta.continue_ == "x"
    assert summarize(map(summary_of, read)) == summarize(map(summary_of, pods))
    assert [of_pod(pod, ()) for pod in read] == [of_pod(pod, ()) for pod in pods]
    assert any(of_pod(pod, ()) for pod in read)
