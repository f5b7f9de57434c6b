"""The chart says what the code says: rights, webhook configurations, the scheduler's, and configurations that parse."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import yaml

import descheduler.flags
import descheduler.rights
import multi_scheduler.config
import multi_scheduler.flags
import multi_scheduler.rights
import virtual_node.config
import virtual_node.config_file
import virtual_node.rights
import webhook.flags
import webhook.rights
from controller_runtime.api import names
from controller_runtime.rights import OWN_NAMESPACE, Right
from hack.chart.rights import LEADER_ELECTION
from hack.chart.template import NAMESPACE
from multi_scheduler.scheduler_configuration import scheduler_configuration
from tests.unit.charts import rendering
from tests.unit.charts.rendering import CASES, objects, one
from virtual_node import operator_rights
from webhook import manifests

Grant = tuple[str, str, str, str, str]
"""Namespace, API group, resource, verb, name."""
RBAC = ("Role", "ClusterRole")
_MOUNTED = re.compile("/etc/virtual-node/(?:config|policy)/")
SCHEDULER = {
    (NAMESPACE, "coordination.k8s.io", "leases", verb, "")
    for verb in ("create", "get", "list", "update", "watch")
}
"""What a stock scheduler needs beside its own system roles: a Lease in our namespace."""


def _asked(rights: Iterable[Right]) -> set[Grant]:
    own = {OWN_NAMESPACE: NAMESPACE, LEADER_ELECTION: NAMESPACE}
    return {
        (own.get(right.namespace, right.namespace), right.group, right.full_resource, verb, name)
        for right in rights
        for verb, name in itertools.product(right.verbs, right.names or ("",))
    }


def _granted(case: str, component: str) -> set[Grant]:
    """What the roles give that are bound to a component's account."""
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"], item["metadata"].get("namespace", ""))
        for item in objects(case)
        if item["kind"].endswith("Binding")
        and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
    }
    return {
        (namespace, group, resource, verb, name)
        for item in objects(case)
        for namespace in [item["metadata"].get("namespace", "")]
        if (item["kind"], item["metadata"]["name"], namespace) in bound
        for rule in item["rules"]
        for group, resource, verb, name in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )
    }


def _nodes(case: str) -> list[str]:
    config = _configuration(case)
    return [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]


def _configuration(case: str) -> virtual_node.config.Config:
    file = next(
        item["data"]["virtual-node.yaml"]
        for item in objects(case)
        if item["kind"] == "ConfigMap" and "virtual-node.yaml" in item["data"]
    )
    return virtual_node.config_file.parse(file)


def _scheduler(case: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        yaml.safe_load(item["data"]["scheduler.yaml"])
        for item in objects(case)
        if item["kind"] == "ConfigMap" and "scheduler.yaml" in item["data"]
    )
    return found


def _arguments(case: str, component: str) -> list[str]:
    container = one(case, "Deployment", component)["spec"]["template"]["spec"]["containers"][0]
    return [text.replace("$(POD_NAMESPACE)", NAMESPACE) for text in container["args"]]


@pytest.mark.parametrize("case", CASES)
def test_rights_are_those_of_the_tables(case):
    """Each component is granted what its table asks for, where it asks for it, and nothing else."""
    kubelet = yaml.safe_load(rendering.values(case)).get("virtualNode", {}).get("kubelet", {})
    virtual = list(virtual_node.rights.UPPER)
    if kubelet.get("servingCertificate") == "CSR":
        virtual += virtual_node.rights.upper_csr(_nodes(case), approve=True)
    expected = {
        "virtual-node": _asked(virtual),
        "webhook": _asked(webhook.rights.UPPER),
        "descheduler": _asked(descheduler.rights.UPPER),
        "multi-scheduler": _asked(multi_scheduler.rights.UPPER),
        "test": _asked(operator_rights.DOCTOR),
        "uninstall": _asked(operator_rights.UNINSTALL),
        "scheduler": SCHEDULER,
    }
    if case == "everything":
        expected["multi-scheduler"] |= _asked(multi_scheduler.rights.BIND)
    installed = {
        item["metadata"]["labels"]["app.kubernetes.io/component"]
        for item in objects(case)
        if item["kind"] in RBAC
    }
    assert installed <= expected.keys()
    for component in installed:
        assert _granted(case, component) == expected[component], component


@pytest.mark.parametrize("case", CASES)
def test_no_rule_has_a_wildcard(case):
    """Groups, resources and verbs are named one by one, and every role is bound."""
    roles = [item for item in objects(case) if item["kind"] in RBAC]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not any("*" in name for name in rule.get("resourceNames", []))
    bound = {item["roleRef"]["name"] for item in objects(case) if item["kind"].endswith("Binding")}
    assert {role["metadata"]["name"] for role in roles} <= bound


@pytest.mark.parametrize("case", CASES)
def test_bindings_are_to_accounts_that_there_are(case):
    """A binding names a ServiceAccount of this release, in its namespace."""
    accounts = {item["metadata"]["name"] for item in objects(case) if item["kind"] == "ServiceAccount"}
    for binding in (item for item in objects(case) if item["kind"].endswith("Binding")):
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
            assert subject["name"] in accounts


@pytest.mark.parametrize("case", [case for case in CASES if case != "no-webhook"])
@pytest.mark.parametrize(
    ("kind", "make", "path"),
    [
        ("MutatingWebhookConfiguration", manifests.mutating, manifests.MUTATE_PATH),
        ("ValidatingWebhookConfiguration", manifests.validating, manifests.VALIDATE_PATH),
    ],
)
def test_webhook_configurations_are_those_of_the_webhook(case, kind, make, path):
    """They differ from what `--register` makes in names, the excluded namespaces and who fills in the CA, alone."""
    given = yaml.safe_load(rendering.values(case)).get("webhook", {})
    if kind.startswith("Validating") and not given.get("validateWorkloads", True):
        assert kind not in {item["kind"] for item in objects(case)}
        return
    found = one(case, kind, "-webhook")
    service = one(case, "Service", "-webhook")["metadata"]
    expected: dict[str, Any] = make(
        manifests.by_service(service["namespace"], service["name"], path, b""), name=found["metadata"]["name"]
    )
    client = expected["webhooks"][0]["clientConfig"]
    del client["caBundle"]
    if "caBundle" in given.get("tls", {}):
        client["caBundle"] = given["tls"]["caBundle"]
    excluded = ["kube-system", NAMESPACE, *given.get("excludedNamespaces", [])]
    expected["webhooks"][0]["namespaceSelector"] = {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded}]
    }
    assert found["webhooks"] == expected["webhooks"]
    assert (found["apiVersion"], found["kind"]) == (expected["apiVersion"], expected["kind"])
    # The leader writes its CA where it makes the certificates, and nowhere else.
    wanted = None if given.get("tls", {}).get("secretName") else "true"
    assert found["metadata"].get("annotations", {}).get(names.ANNOTATION_WANTS_CA) == wanted


@pytest.mark.parametrize("case", [case for case in CASES if case != "default"])
def test_the_scheduler_is_configured_as_the_code_does_it(case):
    """Its configuration is the one of the code, but for the one profile and leader election in our namespace."""
    given = yaml.safe_load(rendering.values(case)).get("multiScheduler", {})
    found = _scheduler(case)
    service = one(case, "Service", "multi-scheduler")
    url = f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{service['spec']['ports'][0]['port']}"
    expected = scheduler_configuration(
        url, weight=given.get("weight", 5), bind=given.get("bind", False), leader_elect=True
    )
    assert len(found.pop("profiles")) == len(expected.pop("profiles")) - 1
    election = found.pop("leaderElection")
    assert election.pop("resourceNamespace") == NAMESPACE
    assert election.pop("resourceName").endswith("-scheduler")
    assert election == expected.pop("leaderElection")
    assert found == expected


def test_the_webhook_chooses_our_scheduler_only_where_it_runs():
    """Labelled pods are not sent to a scheduler that nobody runs."""
    assert "--scheduler-name=virtual-node-scheduler" in _arguments("one-cluster", "-webhook")
    assert not [text for text in _arguments("default", "-webhook") if text.startswith("--scheduler-name")]
    profiles = _scheduler("everything")["profiles"]
    assert profiles == [{"schedulerName": "clusters-scheduler"}]
    assert "--scheduler-name=clusters-scheduler" in _arguments("everything", "-webhook")


@pytest.mark.parametrize("case", CASES)
def test_configurations_parse(case):
    """Both files are ones that their programs take, about the clusters of the values."""
    given = yaml.safe_load(rendering.values(case)).get("virtualNode", {})
    names = [cluster["name"] for cluster in given.get("clusters", [])]
    config = _configuration(case)
    assert [cluster.name for cluster in config.clusters] == names
    assert config.leader_election.enabled, "with one replica, too: during an upgrade there are two"
    if not names:
        return
    file = one(case, "ConfigMap", "multi-scheduler")["data"]["multi-scheduler.yaml"]
    extender = multi_scheduler.config.parse(file)
    assert [cluster.name for cluster in extender.clusters] == names
    assert [node.name for cluster in extender.clusters for node in cluster.nodes] == _nodes(case)
    selectors = [node.node_selector for cluster in extender.clusters for node in cluster.nodes]
    assert selectors == [
        node.node_selector for cluster in config.clusters for node in cluster.virtual_nodes()
    ]


@pytest.mark.parametrize("case", CASES)
def test_kubeconfigs_are_where_the_configuration_says(case):
    """The path of each lower cluster's kubeconfig is a key of a Secret that is mounted there."""
    for component in ("virtual-node", "multi-scheduler"):
        deployments = [
            item
            for item in objects(case)
            if item["kind"] == "Deployment"
            and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
        ]
        for deployment in deployments:
            container = deployment["spec"]["template"]["spec"]["containers"][0]
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            for cluster in _configuration(case).clusters:
                assert cluster.kubeconfig.rpartition("/")[0] in mounts


@pytest.mark.parametrize("case", CASES)
def test_arguments_are_ones_that_the_programs_take(case, tmp_path):
    """No flag is misspelt, none lacks what it needs, and files that are named are good."""
    for item in objects(case):
        if item["kind"] == "ConfigMap":
            for name, text in item["data"].items():
                (tmp_path / name).write_text(text, encoding="utf-8")
    programs: dict[str, Callable[[list[str]], object]] = {
        "-descheduler": descheduler.flags.parse,
        "-webhook": webhook.flags.parse,
        "-multi-scheduler": multi_scheduler.flags.parse,
    }
    found = {item["metadata"]["name"] for item in objects(case) if item["kind"] == "Deployment"}
    for component, parse in programs.items():
        if any(name.endswith(component) for name in found):
            parse([_MOUNTED.sub(f"{tmp_path}/", text) for text in _arguments(case, component)])


def test_the_extender_binds_where_the_scheduler_asks_it_to():
    """`multiScheduler.bind` reaches the scheduler, the extender and its rights alike."""
    assert "--bind" in _arguments("everything", "multi-scheduler")
    assert "--bind" not in _arguments("one-cluster", "multi-scheduler")
