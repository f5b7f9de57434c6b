"""Common practices of charts: overrides that reach everything, reproducible output, independent releases."""

from __future__ import annotations

import inspect
import shutil
from typing import Any

import pytest
import yaml

from hack.chart import template, values
from hack.chart.rights import CHART
from tests.unit.charts import rendering

ONE = "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]}\n"


def _rendered(text: str, **more: Any) -> list[dict[str, Any]]:
    return rendering.render(text, **more)


def _deployment(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (one,) = (one for one in found if (one["kind"], one["metadata"]["name"]) == ("Deployment", name))
    return one


def test_rendering_twice_gives_the_same_text(monkeypatch):
    """So tools that compare rendered with live objects find no difference."""
    monkeypatch.setattr(template, "helm", inspect.unwrap(template.helm))
    given = rendering.values("everything")
    assert template.template(given) == template.template(given)


def test_optional_values_may_be_null():
    """``key=null``, the usual way to drop a default, works for every value that the schema does not require."""
    lines: dict[str, Any] = {}
    for value in values.read():
        if value.default and not value.path.endswith((".resources", ".updateStrategy", ".labels")):
            continue
        at = lines
        *sections, key = value.path.split(".")
        for section in sections:
            at = at.setdefault(section, {})
        at[key] = None
    lines["virtualNode"]["clusters"] = [{"name": "a", "kubeconfigSecret": {"name": "s"}}]
    assert len(values.read()) - 60 > len(lines) > 10
    found = _rendered(yaml.safe_dump(lines))
    kinds = [one["kind"] for one in found]
    assert kinds.count("Deployment") == 5
    for _, spec in rendering.pod_specs(found):
        assert "resources" not in spec["containers"][0]


def test_one_registry_for_all_images():
    """A parent chart's `global.imageRegistry` applies to every image, also to the scheduler's."""
    found = _rendered(ONE + "global: {imageRegistry: mirror.example.com}")
    images = {
        container["image"] for _, spec in rendering.pod_specs(found) for container in spec["containers"]
    }
    assert len(images) == 2
    assert all(image.startswith("mirror.example.com/") for image in images), images


def test_pull_secrets_of_a_parent_chart_are_used():
    """Parent charts write names or objects."""
    given = "imagePullSecrets: [{name: own}]\nglobal: {imagePullSecrets: [mirror, {name: other}, own]}"
    for _, spec in rendering.pod_specs(_rendered(ONE + given)):
        assert spec["imagePullSecrets"] == [{"name": "own"}, {"name": "mirror"}, {"name": "other"}]
    for _, spec in rendering.pod_specs(_rendered(ONE)):
        assert "imagePullSecrets" not in spec


def test_the_schedulers_image_may_be_pinned():
    """A digest wins over the tag, as for the project's image."""
    digest = f"sha256:{'0' * 64}"
    found = _rendered(ONE + f"multiScheduler: {{scheduler: {{image: {{tag: v1, digest: {digest!r}}}}}}}")
    (container,) = _deployment(found, "vn-virtual-node-scheduler")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler@{digest}"


_IDS = ("runAsUser", "runAsGroup", "fsGroup")
_OPENSHIFT = ("--api-versions=security.openshift.io/v1",)


@pytest.mark.parametrize(
    ("given", "arguments", "ids"),
    [
        ("", (), [65532, 65532, 65532]),
        ("", _OPENSHIFT, [None, None, None]),
        ("podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}", (), [None, None, None]),
        ("podSecurityContext: {runAsUser: 1000680000, fsGroup: 5}", _OPENSHIFT, [1000680000, None, 5]),
    ],
)
def test_openshift_chooses_the_ids_of_all_pods(given, arguments, ids):
    """OpenShift's default constraints refuse pods with an ID outside the range of their namespace."""
    specs = [spec for _, spec in rendering.pod_specs(_rendered(ONE + given, arguments=arguments))]
    assert len(specs) > 5
    for spec in specs:
        assert [spec["securityContext"].get(field) for field in _IDS] == ids
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_fields_of_security_contexts_may_be_added_and_removed():
    found = _rendered(
        ONE
        + "podSecurityContext: {fsGroupChangePolicy: OnRootMismatch}\ncontainerSecurityContext: {readOnlyRootFilesystem: null}"
    )
    for _, spec in rendering.pod_specs(found):
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        for container in spec["containers"]:
            assert set(container["securityContext"]) == {"allowPrivilegeEscalation", "capabilities"}


def test_extra_objects_are_installed():
    """`extraObjects` are installed with the release, and may use its values."""
    text = """extraObjects:
      - apiVersion: v1
        kind: ConfigMap
        metadata: {name: '{{ include "virtual-node.fullname" . }}-mine', namespace: '{{ .Release.Namespace }}'}
        data: {port: '{{ .Values.webhook.port }}'}
      - {apiVersion: v1, kind: Secret, metadata: {name: other}}"""
    found = {one["metadata"]["name"]: one for one in _rendered(text)}
    assert found["vn-virtual-node-mine"]["data"] == {"port": "8443"}
    assert found["vn-virtual-node-mine"]["metadata"]["namespace"] == template.NAMESPACE
    assert found["other"]["kind"] == "Secret"


def test_a_strategy_replaces_the_complete_default():
    """`Recreate` has no numbers, which the API server would refuse; null renders the cluster's own default explicitly.

    Values that the API server defaults belong to no field manager: `Recreate`, applied later with server-side
    apply, would find the numbers still there and be refused.
    """
    found = _rendered(
        "webhook: {updateStrategy: {type: Recreate}}\ndescheduler: {updateStrategy: null}\n"
        "virtualNode: {updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}}\nrevisionHistoryLimit: 7"
    )
    assert _deployment(found, "vn-virtual-node-webhook")["spec"]["strategy"] == {"type": "Recreate"}
    said = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    assert _deployment(found, "vn-virtual-node-descheduler")["spec"]["strategy"] == said
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert _deployment(found, "vn-virtual-node")["spec"]["strategy"] == rolling
    limits = {one["spec"]["revisionHistoryLimit"] for one in found if one["kind"] == "Deployment"}
    assert limits == {7}


def test_on_the_nodes_network():
    """For API servers that reach only nodes: the two components that they call use it, and still resolve Services."""
    found = _rendered(
        "virtualNode: {hostNetwork: true, kubelet: {port: 10260}}\nwebhook: {hostNetwork: true}"
    )
    for name, spec in rendering.pod_specs(found):
        there = name in {"Deployment/vn-virtual-node", "Deployment/vn-virtual-node-webhook"}
        assert spec.get("hostNetwork", False) is there, name
        assert spec.get("dnsPolicy") == ("ClusterFirstWithHostNet" if there else None), name


def test_annotations_are_not_duplicated():
    """A user's default-container replaces the chart's; a checksum stays, because changes need it to roll out."""
    mine = "podAnnotations: {kubectl.kubernetes.io/default-container: proxy, checksum/process-config: mine, a: b}"
    text = template.template(f"virtualNode: {{{mine}}}")
    assert text.count("default-container") == 3, "the virtual node's pods, the test's, the clean-up's"
    annotations = _deployment(rendering.parse(text), "vn-virtual-node")["spec"]["template"]["metadata"][
        "annotations"
    ]
    assert annotations["kubectl.kubernetes.io/default-container"] == "proxy"
    assert len(annotations["checksum/process-config"]) == 64
    assert annotations["a"] == "b"


def test_the_scheduler_is_annotated_with_the_extender():
    """`multiScheduler.podAnnotations`, for example against sidecars, are for both its Deployments."""
    found = _rendered(ONE + "multiScheduler: {podAnnotations: {sidecar: 'no'}, podLabels: {team: a}}")
    for name in ("vn-virtual-node-multi-scheduler", "vn-virtual-node-scheduler"):
        metadata = _deployment(found, name)["spec"]["template"]["metadata"]
        assert metadata["annotations"]["sidecar"] == "no"
        assert metadata["labels"]["team"] == "a"


def test_only_the_charts_pods_mount_tokens():
    """A token is mounted where a pod requests it; other pods of the account get none by default."""
    found = _rendered(ONE)
    assert {one["automountServiceAccountToken"] for one in found if one["kind"] == "ServiceAccount"} == {
        False
    }
    assert {spec["automountServiceAccountToken"] for _, spec in rendering.pod_specs(found)} == {True}


@pytest.mark.parametrize(
    ("version", "policy"), [("v1.26.9", None), ("v1.27.0", "AlwaysAllow"), ("v1.34.1-eks-1", "AlwaysAllow")]
)
def test_pods_that_are_not_ready_block_no_drain(version: str, policy: str | None):
    """Budgets say so where the API server knows the field."""
    budgets = [
        one
        for one in _rendered(ONE, arguments=[f"--kube-version={version}"])
        if one["kind"] == "PodDisruptionBudget"
    ]
    assert {one["spec"].get("unhealthyPodEvictionPolicy") for one in budgets} == {policy}


def test_a_single_replica_has_no_budget():
    """It would block the drain of a node, or have no effect."""
    found = _rendered("webhook: {replicas: 1}")
    budgets = {one["metadata"]["name"] for one in found if one["kind"] == "PodDisruptionBudget"}
    assert budgets == {"vn-virtual-node", "vn-virtual-node-descheduler"}


def test_releases_with_similar_names_are_independent():
    """Joined by a hyphen, namespace "a" with "b-virtual-node" would equal "a-b" with "virtual-node"."""
    text = ONE + "priorityClass: {create: true}"
    one, other = (
        {
            (found["kind"], found["metadata"]["name"])
            for found in _rendered(text, namespace=namespace, release=release)
            if "namespace" not in found["metadata"]
        }
        for namespace, release in (("a", "b-virtual-node"), ("a-b", "virtual-node"))
    )
    assert len(one) > 10
    assert one & other == {("CSIDriver", "lower-cluster.virtual-node.io")}, "one serves all releases"


def test_lists_may_be_given_on_the_command_line():
    """`--set 'virtualNode.clusters[0].name=…'`, as in the notes and the README."""
    found = _rendered(
        "",
        arguments=[
            *("--set", "virtualNode.clusters[0].name=lower1"),
            *("--set", "virtualNode.clusters[0].kubeconfigSecret.name=virtual-node-lower1"),
            *("--set", "webhook.excludedNamespaces={a,b}"),
        ],
    )
    assert [cluster["name"] for cluster in yaml.safe_load(rendering.configuration(found))["clusters"]] == [
        "lower1"
    ]
    (webhook,) = (one["webhooks"][0] for one in found if one["kind"] == "MutatingWebhookConfiguration")
    (expression,) = webhook["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["kube-system", template.NAMESPACE, "a", "b"]


def test_a_new_chart_version_alone_restarts_nothing(tmp_path, monkeypatch):
    """Its label is on every object except pods, so their templates do not change."""
    copy = shutil.copytree(CHART, tmp_path / "virtual-node")
    chart = copy / "Chart.yaml"
    text = chart.read_text("utf-8")
    chart.write_text(text.replace("\nversion: 0.1.0\n", "\nversion: 0.1.1\n"), "utf-8")
    assert chart.read_text("utf-8") != text
    before = rendering.parse(template.template(ONE))
    monkeypatch.setattr(template, "CHART", copy)
    after = rendering.parse(template.template(ONE))
    assert before[0]["metadata"] != after[0]["metadata"]
    for one, other in zip(before, after, strict=True):
        if one["kind"] == "Deployment":
            assert one["spec"] == other["spec"], one["metadata"]["name"]
