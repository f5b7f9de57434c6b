"""Workloads of the benchmarks that let the scheduler choose the node."""

from __future__ import annotations

from tests.benchmarks.bench_jobs import job
from tests.benchmarks.bench_mirroring import deployment


def test_pods_of_jobs_and_deployments_are_not_bound():
    """A Deployment may select one node."""
    assert "nodeName" not in job("a")["spec"]["template"]["spec"]
    for node, selector in (("", None), ("vn", {"kubernetes.io/hostname": "vn"})):
        made = deployment(3, node=node)
        assert made["spec"]["selector"]["matchLabels"] == {"app": "load"}
        template = made["spec"]["template"]
        assert template["metadata"] == {"labels": {"app": "load"}}
        assert "nodeName" not in template["spec"]
        assert template["spec"].get("nodeSelector") == selector
