"""The chart's pods: restricted Pod Security, probes, resources, pinned images."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hack.chart import template
from tests.unit.charts import rendering
from tests.unit.charts.rendering import CASES

ONCE = ("Job/", "Pod/")
"""Jobs, which have no probes."""
VOLUMES = {
    *(
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
}


def _specs(case: str) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and name, and spec, of the pods of a case; there are some."""
    found = rendering.pod_specs(rendering.objects(case))
    assert found
    return found


def violations(spec: dict[str, Any]) -> list[str]:
    """Return violations of the restricted Pod Security standard.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    pod = spec.get("securityContext", {})
    found = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    found += [f"volume {volume['name']}" for volume in spec.get("volumes", []) if not VOLUMES & volume.keys()]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext", {})
        both = {**pod, **own}
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") in {"RuntimeDefault", "Localhost"},
            "capabilities.drop": "ALL" in own.get("capabilities", {}).get("drop", []),
            "capabilities.add": set(own.get("capabilities", {}).get("add", [])) <= {"NET_BIND_SERVICE"},
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", [])),
            "procMount": own.get("procMount", "Default") == "Default",
        }
        found += [f"{container['name']}: {what}" for what, holds in checks.items() if not holds]
    if pod.get("sysctls"):
        found.append("sysctls")
    return found


@pytest.mark.parametrize("case", CASES)
def test_pods_are_restricted(case):
    """And have a read-only root file system."""
    for name, spec in _specs(case):
        assert violations(spec) == [], name
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


@pytest.mark.parametrize("case", CASES)
def test_pods_are_probed(case):
    """Long-running containers have probes, each on a port that it declares."""
    for name, spec in _specs(case):
        if name.startswith(ONCE):
            assert spec["restartPolicy"] == "Never", name
            continue
        for container in spec["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports, name


@pytest.mark.parametrize("case", CASES)
def test_pods_have_requests(case):
    """For CPU and memory, so that a full node does not evict them first."""
    for name, spec in _specs(case):
        for container in spec["containers"]:
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name


@pytest.mark.parametrize("case", CASES)
def test_images_have_a_version(case):
    """A tag or a digest that is not `latest`."""
    for name, spec in _specs(case):
        for container in spec["containers"]:
            match = re.fullmatch(
                r"[^:@]+(?::\d+)?[^:@]*(?::(?P<tag>[\w.-]+)|@sha256:[0-9a-f]{64})", container["image"]
            )
            assert match, (name, container["image"])
            assert match["tag"] != "latest", name


@pytest.mark.parametrize("case", CASES)
def test_pods_stay_off_virtual_nodes(case):
    """Components do not run on virtual nodes, unless the user's own affinity says so."""
    expression = {"key": "type", "operator": "NotIn", "values": ["virtual-kubelet"]}
    for name, spec in _specs(case):
        if spec["affinity"] != {"podAntiAffinity": {}}:
            terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert terms == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}, name


def test_unrestricted_pods_are_found():
    """The checks above can fail."""
    loose = {
        "hostNetwork": True,
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [
            {
                "name": "c",
                "ports": [{"hostPort": 1}],
                "securityContext": {
                    "privileged": True,
                    "runAsUser": 0,
                    "capabilities": {"add": ["SYS_ADMIN"]},
                },
            }
        ],
    }
    told = " ".join(violations(loose))
    for word in (
        *(
            "hostNetwork",
            "volume host",
            "privileged",
            "allowPrivilegeEscalation",
            "runAsNonRoot",
            "runAsUser",
        ),
        *("seccompProfile", "capabilities.drop", "capabilities.add", "hostPort"),
    ):
        assert word in told


def test_a_process_ends_after_its_streams():
    """The grace period is longer than the limit of streams, so the kubelet does not cut them."""
    for case in CASES:
        for name, spec in rendering.pod_specs(rendering.objects(case)):
            if spec["containers"][0]["name"] == "virtual-node":
                assert spec["terminationGracePeriodSeconds"] >= 300 + 20, name


def test_priority_is_on_every_pod_of_the_programs():
    """With a PriorityClass, created or given, each Deployment uses it."""
    for values, name in (
        ("priorityClass: {create: true}", f"{template.NAMESPACE}.vn-virtual-node"),
        ("priorityClass: {create: true, name: high}", "high"),
        ("priorityClass: {name: system-cluster-critical}", "system-cluster-critical"),
    ):
        found = rendering.parse(template.template(values))
        made = {one["metadata"]["name"] for one in found if one["kind"] == "PriorityClass"}
        assert made == ({name} if "create" in values else set())
        for what, spec in rendering.pod_specs(found):
            if what.startswith("Deployment/"):
                assert spec["priorityClassName"] == name


def test_variables_of_the_user_replace_the_charts():
    """Each name is there once, because server-side apply refuses duplicates."""
    given = "extraEnv: [{name: POD_NAMESPACE, value: theirs}, {name: MORE, value: a}]"
    found = rendering.parse(
        template.template(
            "\n".join(f"{part}: {{{given}}}" for part in ("virtualNode", "webhook", "descheduler"))
        )
    )
    for name, spec in rendering.pod_specs(found):
        (container,) = spec["containers"]
        if name.startswith("Deployment/"):
            names = [one["name"] for one in container["env"]]
            assert sorted(set(names)) == sorted(names), name
            assert {"name": "POD_NAMESPACE", "value": "theirs"} in container["env"], name
            assert ("VKUBELET_POD_IP" in names) is (container["name"] == "virtual-node"), name


def test_scheduler_has_the_given_feature_gates():
    """Without values it has none, because an older scheduler does not start with unknown ones."""
    enabled = (
        "virtualNode: {clusters: [{name: a, kubeconfig: text}]}\n"
        "multiScheduler: {enabled: true, scheduler: {featureGates: %s}}"
    )
    for given, wanted in (
        ("{}", []),
        ("{GenericWorkload: true, Other: false}", ["GenericWorkload=true", "Other=false"]),
    ):
        specs = dict(rendering.pod_specs(rendering.render(enabled % given)))
        (scheduler,) = (
            spec["containers"][0]
            for spec in specs.values()
            if spec["containers"][0]["name"] == "kube-scheduler"
        )
        found = [flag for flag in scheduler["args"] if "feature-gates" in flag]
        assert found == [f"--feature-gates={gate}" for gate in wanted]
