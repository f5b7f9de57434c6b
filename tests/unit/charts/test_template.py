"""Helm's output for the chart: equal to the golden files, without warnings, with valid and unique names."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from typing import Any

import pytest
import yaml

from hack.chart import dashboard, readme, template
from hack.chart.rights import CHART
from hack.sandbox.builds.programs import KUBERNETES_VERSION
from tests.thorough import some
from tests.unit.charts import rendering
from tests.unit.charts.rendering import CASES, COMMAND, GOLDEN, objects

LONGEST_RELEASE = "r" * 53
EXAMPLES = re.findall(r"```yaml\n(# values\.yaml.*?)```", readme.HEAD.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("case", rendering.REVIEWED)
def test_output_equals_the_golden_files(case):
    """So a change of the templates shows as a difference that is reviewed and committed."""
    assert rendering.reviewed(case), f"run `{COMMAND}`"
    assert _in_order(rendering.golden(case)) == _in_order(rendering.reviewed(case)), (
        f"read what changed, then run `{COMMAND}`"
    )


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        ("certificates", [
            "servingCertificate: Files", "tlsCertFile: /etc/virtual-node/serving/tls.crt",
            "tlsPrivateKeyFile: /etc/virtual-node/serving/tls.key", "- --tlscert=/etc/virtual-node/tls/tls.crt",
            "- --tlskey=/etc/virtual-node/tls/tls.key", "- {name: tls, mountPath: /etc/virtual-node/tls, readOnly: true}",
            "- {name: serving, mountPath: /etc/virtual-node/serving, readOnly: true}",
            "secret: {secretName: kubelet-cert}", "secret: {secretName: webhook-cert}",
            "cert-manager.io/inject-ca-from: virtual-node-system/webhook",
        ]),
        ("csr", [
            "- kubeconfig: /etc/virtual-node/clusters/lower2/kubeconfig", "nodeName: vn-lower2",
            "approveServingCertificate: true", "servingCertificate: CSR",
            "message: a virtual node may act as its node only to request a serving certificate",
        ]),
        ("inventory", [
            "- endPort: 10350", "prefix: u1-", "preset: restricted", "deletionPolicy: Retain", "- mountPath: /plugins",
            "claimName: plugins", '&& (variables.node.startsWith("profile-") || variables.node in ["lower1"])',
        ]),
        ("no-webhook", [
            "- urlPrefix: http://vn-virtual-node-multi-scheduler.virtual-node-system.svc:8888", "enableHTTPS: false",
        ]),
        ("policy", [
            "name: vn-virtual-node-cluster-lower1", "kubeconfig: YXBpVmVyc2lvbjogdjE=", "- --descheduling-interval=90s",
            "- secret: {name: vn-virtual-node-cluster-lower1}", "caBundle: Q0E=", "secret: {secretName: webhook-cert}",
        ]),
    ],
)  # fmt: skip
def test_values_without_a_golden_file_have_their_lines(case, lines):
    """No golden file has these lines."""
    assert set(lines) - {line.strip() for line in rendering.golden(case).splitlines()} == set()


def _in_order(text: str) -> str:
    """Sort objects, because Helm 3 and 4 differ in the order of kinds."""
    return "\n---\n".join(sorted(text.strip().removeprefix("---\n").split("\n---\n")))


@pytest.mark.parametrize("case", CASES)
def test_no_trailing_spaces(case):
    assert [line for line in rendering.golden(case).splitlines() if line != line.rstrip()] == []


def test_every_golden_file_has_its_values():
    """No golden file outlives its case."""
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(rendering.REVIEWED) <= set(CASES)


@pytest.mark.parametrize("case", some(CASES, 2))
def test_lint_finds_nothing(case):
    """`helm lint --strict` finds neither errors nor warnings, and no value is of another type than its default."""
    assert template.lint(rendering.values(case)).strip() == ""


@pytest.mark.parametrize("example", some(EXAMPLES, 3))
def test_examples_of_the_readme_work(example):
    assert rendering.parse(template.template(example))


def test_the_readme_has_examples():
    """The previous test finds them."""
    assert len(EXAMPLES) >= 7


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_rendered_twice(case):
    """Kind, namespace and name are unique, and every namespaced object has its namespace."""
    found = Counter(
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects(case)
    )
    assert [key for key, count in found.items() if count > 1] == []
    whole = {
        *("ClusterRole", "ClusterRoleBinding", "PriorityClass", "CSIDriver", "CustomResourceDefinition"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    }
    assert [key for key in found if (key[0] in whole) != (key[1] == "")] == []


@pytest.mark.parametrize(
    "release", some([LONGEST_RELEASE, "1234", f"{'r' * 39}.{'r' * 13}", "team.vn", "vn"], 2)
)
def test_names_are_short_enough(release):
    """And label values are text, for any release name."""
    text = template.template(
        "virtualNode: {clusters: [{name: " + "c" * 50 + ", kubeconfigSecret: {name: secret}}]}\n"
        "priorityClass: {create: true}\nnetworkPolicy: {enabled: true}\nmetrics: {dashboard: {enabled: true}}",
        release=release,
    )
    for one in rendering.parse(text):
        name, labels = one["metadata"]["name"], one["metadata"]["labels"]
        # Names of roles may be longer, and carry the namespace.
        whole = any(part in one["kind"] for part in ("Role", "Webhook", "PriorityClass", "AdmissionPolicy"))
        assert len(name) <= (253 if whole else 63), name
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
        assert one["kind"] != "Service" or re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert all(isinstance(value, str) and len(value) <= 63 for value in labels.values()), labels
    for _, spec in rendering.pod_specs(rendering.parse(text)):
        assert all(len(volume["name"]) <= 63 for volume in spec.get("volumes", []))


@pytest.mark.parametrize("case", CASES)
def test_selectors_match_exactly_their_pods(case):
    """Each Service, budget, policy and Deployment selects pods of this release, and of one component alone."""
    templates = [
        one["spec"]["template"]["metadata"]["labels"] for one in objects(case) if one["kind"] == "Deployment"
    ]
    for one in objects(case):
        match one["kind"]:
            case "Service":
                wanted = one["spec"]["selector"]
            case "PodDisruptionBudget" | "Deployment":
                wanted = one["spec"]["selector"]["matchLabels"]
            case "NetworkPolicy":
                wanted = one["spec"]["podSelector"]["matchLabels"]
            case _:
                continue
        matched = [labels for labels in templates if wanted.items() <= labels.items()]
        everybody = one["metadata"]["name"].endswith("-metrics")
        assert len(matched) == (len(templates) if everybody else 1), one["metadata"]["name"]


def test_all_requests_of_a_scheduler_go_to_one_replica_of_the_extender():
    """Its reservations are in memory."""
    service = rendering.one("everything", "Service", "multi-scheduler")
    assert service["spec"]["sessionAffinity"] == "ClientIP"


@pytest.mark.parametrize("case", CASES)
def test_services_lead_to_existing_ports(case):
    deployments = [one for one in objects(case) if one["kind"] == "Deployment"]
    for service in (one for one in objects(case) if one["kind"] == "Service"):
        named = {
            found
            for one in deployments
            if service["spec"]["selector"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
            for container in one["spec"]["template"]["spec"]["containers"]
            for port in container["ports"]
            for found in (port["name"], port["containerPort"])
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named


@pytest.mark.parametrize("case", CASES)
def test_mounted_objects_exist(case):
    """Every ConfigMap, Secret and ServiceAccount of pods is rendered, or is named in the values."""
    made = {(one["kind"], one["metadata"]["name"]) for one in objects(case)}
    given = rendering.values(case)
    for name, spec in rendering.pod_specs(objects(case)):
        account = spec.get("serviceAccountName")
        assert ("ServiceAccount", account) in made if account else not spec["automountServiceAccountToken"], (
            name
        )
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made, name
            if "secret" in volume:
                secret = volume["secret"]["secretName"]
                # `lower-cluster join` makes that of a tunnel, which has the name of the Deployment.
                assert ("Secret", secret) in made or secret in given or name == f"Deployment/{secret}", name
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        mounts = {
            mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", [])
        }
        assert mounts == volumes, name


@pytest.mark.parametrize(
    "version", ["1.2.3+3f0a9c1d.dirty", f"1.2.3-{'rc.' * 15}{'4' * 40}", f"1.2.3-{'b' * 43}.5"]
)
def test_versions_of_a_fork_are_labels(version, tmp_path):
    """Flux appends the digest to the version of a chart, and build systems use long pre-releases."""
    copy = shutil.copytree(CHART, tmp_path / "chart")
    file = copy / "Chart.yaml"
    file.write_text(file.read_text("utf-8").replace("0.1.0", version), "utf-8")
    values = "{virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]}}"
    text = template.helm("template", "vn", str(copy), "--values=-", stdin=values)
    found = rendering.parse(text)
    assert found
    for one in found:
        for key in ("helm.sh/chart", "app.kubernetes.io/version"):
            label = one["metadata"]["labels"][key]
            assert re.fullmatch(r"[A-Za-z0-9][-\w.]{0,61}[A-Za-z0-9]", label, re.ASCII), label
            assert "1.2.3" in label


def test_spread_constraints_select_the_replicas_by_default():
    """Without a selector they would count no pods. A given one stays, and does not become a part of the next one."""
    given = "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule"
    found = rendering.render(
        "{virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}], topologySpreadConstraints: "
        f"[{given}}}, {given}, labelSelector: {{}}}}, {given}, labelSelector: {{matchLabels: {{a: b}}}}}}, "
        f"{given}, labelSelector: null, minDomains: null, matchLabelKeys: null, nodeTaintsPolicy: null}}]}}}}"
    )
    (deployment,) = [
        one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"] == "vn-virtual-node"
    ]
    constraints = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    own = {"matchLabels": deployment["spec"]["selector"]["matchLabels"]}
    assert [constraint["labelSelector"] for constraint in constraints] == [
        own,
        {},
        {"matchLabels": {"a": "b"}},
        own,
    ]


def test_common_labels_and_annotations_are_everywhere():
    """`commonLabels` and `commonAnnotations` are on every object, hooks too."""
    for one in objects("everything"):
        assert one["metadata"]["labels"]["example.com/team"] == "platform", one["metadata"]["name"]
        assert one["metadata"]["annotations"]["example.com/owner"] == "platform", one["metadata"]["name"]


def test_user_labels_do_not_replace_the_charts():
    """A label that selectors depend on stays, and none is there twice."""
    wrong = "{app.kubernetes.io/component: mine, example.com/a: b}"
    text = template.template(f"commonLabels: {wrong}\nwebhook: {{podLabels: {wrong}}}")
    assert "mine" not in text
    for one in rendering.parse(text):
        assert one["metadata"]["labels"]["example.com/a"] == "b"
    assert text.count("example.com/a: b") > 10
    assert len(re.findall(r"(?m)^ +example\.com/a: b\n +example\.com/a: b", text)) == 0


def test_a_kubeconfig_as_text_also_works_with_the_extender_alone():
    """The extender without virtual nodes needs the same Secret."""
    found = rendering.parse(
        template.template(
            "virtualNode: {enabled: false, clusters: [{name: a, kubeconfig: text}]}\nwebhook: {enabled: false}"
        )
    )
    assert "vn-virtual-node-cluster-a" in {
        one["metadata"]["name"] for one in found if one["kind"] == "Secret"
    }


def test_the_dashboard_is_rendered_unchanged():
    """The ConfigMap holds the file byte for byte: Grafana's braces are not templated by Helm."""
    found = rendering.one("everything", "ConfigMap", "-dashboard")["data"]["virtual-node.json"]
    assert json.loads(found) == json.loads(dashboard.FILE.read_text("utf-8"))


def test_alerts_of_absent_components_are_left_out():
    """Also those that the values disable."""
    rules = "metrics: {prometheusRule: {enabled: true, disabled: [VirtualNodeApiErrors]}}"
    off = "webhook: {enabled: false}\ndescheduler: {enabled: false}"
    text = template.template(
        f"{rules}\n{off}", arguments=["--show-only=templates/monitoring/prometheusrule.yaml"]
    )
    names = {rule["alert"] for rule in yaml.safe_load(text)["spec"]["groups"][0]["rules"]}
    assert "VirtualNodeClusterDown" in names
    assert names.isdisjoint(
        {"VirtualNodeApiErrors", "VirtualNodeWebhookErrors", "VirtualNodeDeschedulerStuck"}
    )


def test_the_schedulers_version_is_that_of_the_cluster():
    """The values set no tag."""
    containers: list[dict[str, Any]] = rendering.one("one-cluster", "Deployment", "virtual-node-scheduler")[
        "spec"
    ]["template"]["spec"]["containers"]
    assert containers[0]["image"] == f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}"


def test_releases_of_one_name_in_two_namespaces_share_no_object():
    """Helm would refuse a cluster-scoped object that is in both releases. The chart detects an existing CSIDriver."""
    clusters = "clusters: [{name: a, kubeconfigSecret: {name: s}}]"
    text = f"virtualNode: {{{clusters}, createCSIDriver: false}}\npriorityClass: {{create: true}}"
    one, other = (
        {
            (found["kind"], found["metadata"].get("namespace"), found["metadata"]["name"])
            for found in rendering.parse(template.template(text, namespace=namespace))
        }
        for namespace in ("one", "two")
    )
    assert one & other == set()


_OTHERWISE_NUMBERS = """
clusterId: "123"
priorityClass: {name: "1e3"}
virtualNode:
  kubelet: {servingCertificate: CSR}
  serviceAccount: {create: false, name: "12"}
  clusters:
    - {name: "1", kubeconfigSecret: {name: "007"}, config: {context: "010", nodeSelector: {a: "true"}}}
    - {name: "0123", kubeconfigSecret: {name: s}, config: {nodes: [{name: "1e3"}, {name: "5"}]}}
webhook: {excludedNamespaces: ["5"], tls: {secretName: "6"}}
multiScheduler: {scheduler: {name: "7"}}
networkPolicy: {enabled: true}
metrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}
"""
_TEXTS = {
    *("name", "namespace", "secretName", "serviceAccountName", "priorityClassName", "schedulerName"),
    *("context", "nodeName", "resourceNamespace", "clusterId", "kubeconfig"),
}


def _not_text(value: Any, path: str) -> list[str]:
    if isinstance(value, dict):
        here = [f"{path}.{key}" for key in _TEXTS & set(value) if not isinstance(value[key], str)]
        return here + [one for key, part in value.items() for one in _not_text(part, f"{path}.{key}")]
    if isinstance(value, list):
        return [one for part in value for one in _not_text(part, f"{path}[]")]
    return []


def test_names_that_look_like_numbers_stay_text():
    """A namespace may be called 123; the API server accepts no number for a name."""
    found = rendering.parse(template.template(_OTHERWISE_NUMBERS, namespace="123"))
    for one in found:
        path = f"{one['kind']}/{one['metadata']['name']}"
        assert _not_text(one, path) == []
        if one["kind"] == "ConfigMap":
            for file, text in one.get("data", {}).items():
                assert _not_text(yaml.safe_load(text), f"{path}/{file}") == []
    impersonated = {
        user
        for one in found
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        if rule["resources"] == ["users"]
        for user in rule["resourceNames"]
    }
    assert impersonated == {"system:node:1", "system:node:1e3", "system:node:5"}


@pytest.mark.parametrize(
    ("version", "wanted"), [("v1.24.17", "v1beta3"), ("v1.25.0-eks-1", "v1"), ("v1.34.4+k3s1", "v1")]
)
def test_the_schedulers_configuration_fits_its_version(version: str, wanted: str):
    """Kubernetes 1.24 does not know version v1 of it, and kube-scheduler would not start."""
    text = template.template(
        "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}}]}",
        arguments=[f"--kube-version={version}"],
    )
    (configuration,) = (
        yaml.safe_load(one["data"]["scheduler.yaml"])
        for one in rendering.parse(text)
        if one["kind"] == "ConfigMap" and "scheduler.yaml" in one.get("data", ())
    )
    assert configuration["apiVersion"] == f"kubescheduler.config.k8s.io/{wanted}"
