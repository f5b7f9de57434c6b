"""The two hooks: `helm test` and the clean-up of `helm uninstall`."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import yaml

from hack.chart import template
from tests.unit.charts import rendering
from tests.unit.charts.rendering import CASES, objects
from virtual_node.commands.cleanup import command
from virtual_node.config.types import Config

HOOKS = {"test", "pre-delete"}
CLUSTER = "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]"


def _hooks(case: str) -> list[dict[str, Any]]:
    return [one for one in objects(case) if "helm.sh/hook" in one["metadata"].get("annotations", {})]


def _given(case: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(rendering.values(case))
    return found


def _job(text: str) -> dict[str, Any]:
    (job,) = (one for one in rendering.parse(template.template(text)) if one["kind"] == "Job")
    return job


@pytest.mark.parametrize("case", CASES)
def test_hooks_leave_nothing(case):
    """Objects of `helm test` and `helm uninstall` are deleted on success, and recreated on repetition."""
    for one in _hooks(case):
        annotations = one["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] in HOOKS
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


@pytest.mark.parametrize("case", CASES)
def test_rights_of_a_hook_exist_before_it_runs(case):
    """Accounts, roles and bindings have a lower weight than the pod that needs them."""
    for one in _hooks(case):
        weight = int(one["metadata"]["annotations"].get("helm.sh/hook-weight", "0"))
        assert weight == (0 if one["kind"] in {"Job", "Pod"} else -5), one["kind"]


def test_the_clean_up_reaches_lower_clusters_like_the_virtual_node():
    """The Job has the proxy, CA and credential plugin's files of the virtual node."""
    more = "extraEnv: [{name: HTTPS_PROXY, value: p}], extraVolumes: [{name: ca, emptyDir: {}}]"
    mount = (
        "extraVolumeMounts: [{name: ca, mountPath: /ca}], podAnnotations: {sidecar.istio.io/inject: 'false'}"
    )
    made = _job(f"{CLUSTER}, {more}, {mount}}}")["spec"]["template"]
    (container,) = made["spec"]["containers"]
    assert container["env"] == [{"name": "HTTPS_PROXY", "value": "p"}]
    assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert {"name": "ca", "emptyDir": {}} in made["spec"]["volumes"]
    assert made["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_the_clean_up_knows_that_it_is_a_hook():
    """Applied as an ordinary object it does nothing; by hand, without the flag, it is not checked."""
    (container,) = _job(CLUSTER + "}")["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "--as-hook"


@pytest.mark.parametrize("case", CASES)
def test_the_clean_ups_flags_are_valid(case, tmp_path, monkeypatch):
    """No flag of the Job is misspelt, and its names are those of the release."""
    ran: list[tuple[Config, argparse.Namespace]] = []

    async def run(config: Config, own: argparse.Namespace) -> None:
        ran.append((config, own))

    monkeypatch.setattr(command, "_run", run)
    for job in (one for one in objects(case) if one["kind"] == "Job"):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        (tmp_path / "virtual-node.yaml").write_text(rendering.configuration(objects(case)), "utf-8")
        arguments = [text.replace("/etc/virtual-node/config", str(tmp_path)) for text in container["args"]]
        assert [*container["command"], command.main(arguments)] == ["virtual-node", "cleanup", 0]
        ((config, own),) = ran
        assert own.as_hook
        assert own.namespace == template.NAMESPACE
        assert [cluster.name for cluster in config.clusters] == [
            cluster["name"] for cluster in _given(case).get("virtualNode", {}).get("clusters", [])
        ]
        webhooks = {
            one["metadata"]["name"] for one in objects(case) if one["kind"].endswith("WebhookConfiguration")
        }
        assert webhooks == ({own.webhook_configuration} - {""})


@pytest.mark.parametrize("kind", ["Job", "Pod"])
def test_helm_prints_the_output_of_hooks(kind):
    """What the clean-up kept, and the doctor's verdict: the pods with the logs are deleted on success."""
    (one,) = (one for one in objects("default") if one["kind"] == kind)
    assert one["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-succeeded,hook-failed"


def test_hooks_run_where_the_virtual_node_runs():
    """Where every node is tainted, a test without tolerations would wait forever."""
    text = (
        CLUSTER
        + ", nodeSelector: {a: b}, tolerations: [{key: c}], hostNetwork: true, kubelet: {port: 10260}}"
    )
    specs = dict(rendering.pod_specs(rendering.parse(template.template(text))))
    for name in ("Pod/vn-virtual-node-test", "Job/vn-virtual-node-uninstall"):
        spec = specs[name]
        assert (spec["nodeSelector"], spec["tolerations"]) == ({"a": "b"}, [{"key": "c"}])
        assert "hostNetwork" not in spec
        assert spec["restartPolicy"] == "Never"
