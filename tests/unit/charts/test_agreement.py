"""The chart agrees with the code: rights, webhook configurations, the scheduler's configuration and configuration files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

import descheduler.program
import multi_scheduler.annotator.program
import multi_scheduler.config
import multi_scheduler.program
import swarm.program
import virtual_node.config.file
import virtual_node.config.types
import virtual_node.rights.daemon
import webhook.program
from clusterset.model import names
from clusterset.model.policy.copied_keys import ZONES
from clusterset.model.rights import (
    EXTENDER_LEASE,
    EXTENDER_SECRET,
    INSPECTION_HISTORY,
    LEASE,
    LEASES,
    TOKEN_SECRET,
    VIRTUAL_NODE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SECRET,
)
from controller_runtime.rights import Right, resolved, rules
from hack.chart import rights
from hack.chart.template import NAMESPACE, template
from hack.programs import DAEMON, programs
from multi_scheduler.print_configuration import scheduler_configuration
from swarm.controller import delivery
from tests.thorough import some
from tests.unit.charts import rendering
from tests.unit.charts.rendering import CASES, objects, one
from virtual_node.commands import parsers
from virtual_node.rights import operator
from virtual_node.translate.storage.pv import csi_driver
from webhook import manifests

Grant = tuple[str, str, str, str, str]
"""Namespace, API group, resource, verb, name."""
RBAC = ("Role", "ClusterRole")
BINDINGS = ("RoleBinding", "ClusterRoleBinding")
_MOUNTED = re.compile("/etc/virtual-node/(?:config|policy)/")
SCHEDULER = {
    (NAMESPACE, "coordination.k8s.io", "leases", verb, name)
    for name, verbs in (("", ("create",)), ("vn-virtual-node-scheduler", ("get", "list", "update", "watch")))
    for verb in verbs
}
"""Rights of a stock scheduler besides its own system roles: a Lease in the release's namespace."""


def _asked(case: str, rights: Iterable[Right], *more_nodes: str) -> set[Grant]:
    """Return a table's rights with the names of a case's objects."""
    given = yaml.safe_load(rendering.values(case))
    whole = given.get("fullnameOverride", "vn-virtual-node")
    is_self_managed = not given.get("webhook", {}).get("tls", {}).get("secretName")
    has_secret = given.get("webhook", {}).get("enabled", True) and is_self_managed
    names = {
        VIRTUAL_NODE: [*_nodes(case), *more_nodes],
        WEBHOOK_CONFIGURATION: [f"{NAMESPACE}.{whole}-webhook"],
        WEBHOOK_SECRET: [f"{whole}-webhook-tls"] if has_secret else [],
        EXTENDER_SECRET: _secrets(case),
        EXTENDER_LEASE: [f"{whole}-multi-scheduler"],
        LEASE: [whole],
        INSPECTION_HISTORY: [f"{whole}-inspection"],
        TOKEN_SECRET: [secret.name for one in _configuration(case).clusters for secret in one.token_secrets],
        LEASES: [
            whole,
            "virtual-node-webhook",
            "virtual-node-descheduler",
            "virtual-node-annotator",
            f"{whole}-multi-scheduler",
            f"{whole}-scheduler",
        ],
    }
    return {
        (right.namespace, right.group, right.full_resource, verb, name)
        for right in resolved(rights, names=names, own_namespace=NAMESPACE)
        for verb, name in itertools.product(right.verbs, right.names or ("",))
    }


def _secrets(case: str) -> list[str]:
    """Return the Secrets that the chart makes for the certificates of extender and scheduler."""
    return [
        item["metadata"]["name"]
        for item in objects(case)
        if item["kind"] == "Secret" and item["metadata"]["name"].endswith("scheduler-tls")
    ]


def _granted(case: str, component: str) -> set[Grant]:
    """Return the rules of the roles that are bound to a component's account."""
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"], item["metadata"].get("namespace", ""))
        for item in objects(case)
        if item["kind"] in BINDINGS and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
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
    nodes = [node.name for cluster in config.clusters for node in cluster.virtual_nodes()]
    profiles = config.cluster_profiles
    return nodes + [profiles.name_prefix + name for name in profiles.names] if profiles is not None else nodes


def _configuration(case: str) -> virtual_node.config.types.Config:
    return virtual_node.config.file.parse(rendering.configuration(objects(case)))


def _component(item: dict[str, Any]) -> str:
    component: str = item["metadata"]["labels"]["app.kubernetes.io/component"]
    return component


def _scheduler(case: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        yaml.safe_load(item["data"]["scheduler.yaml"])
        for item in objects(case)
        if item["kind"] == "ConfigMap" and "scheduler.yaml" in item.get("data", ())
    )
    return found


def _arguments(case: str, component: str) -> list[str]:
    container = one(case, "Deployment", component)["spec"]["template"]["spec"]["containers"][0]
    return [text.replace("$(POD_NAMESPACE)", NAMESPACE) for text in container["args"]]


@pytest.mark.parametrize("case", CASES)
def test_rights_are_those_of_the_tables(case):
    """Each component is granted exactly the rights of its table."""
    given = yaml.safe_load(rendering.values(case))
    kubelet = given.get("virtualNode", {}).get("kubelet", {})
    is_sharded = given.get("virtualNode", {}).get("mode") == "Sharded"
    virtual = [
        *virtual_node.rights.daemon.UPPER,
        *(
            virtual_node.rights.daemon.UPPER_SHARDS
            if is_sharded
            else virtual_node.rights.daemon.UPPER_ELECTION
        ),
        *virtual_node.rights.daemon.UPPER_RENEWAL,
    ]
    if kubelet.get("servingCertificate") == "CSR":
        virtual += [*virtual_node.rights.daemon.UPPER_CSR, *virtual_node.rights.daemon.UPPER_CSR_APPROVAL]
    clusters = given.get("virtualNode", {}).get("clusters", [])
    inspects = list(operator.INSPECTION)
    for kind in {kind for cluster in clusters for kind in cluster.get("config", {}).get("follow", [])}:
        virtual += virtual_node.rights.daemon.UPPER_COPIES[kind]
        inspects += virtual_node.rights.daemon.INSPECTION_COPIES[kind]
    if given.get("virtualNode", {}).get("web", {}).get("enabled", True):
        virtual += virtual_node.rights.daemon.UPPER_PAGE
    multi = list(multi_scheduler.program.UPPER)
    if given.get("multiScheduler", {}).get("bind", True):
        multi += multi_scheduler.program.BIND
    if given.get("multiScheduler", {}).get("upperUsage"):
        multi += multi_scheduler.program.UPPER_KUBELETS
    annotates = list(multi_scheduler.annotator.program.UPPER)
    removes = [*operator.UNINSTALL, *(operator.UNINSTALL_SHARDS if is_sharded else ())]
    if (profiles := _configuration(case).cluster_profiles) is not None:
        read = [
            dataclasses.replace(one, namespace=profiles.namespace) for one in multi_scheduler.program.PROFILES
        ]
        for kind in profiles.defaults.get("follow", []):
            virtual += virtual_node.rights.daemon.UPPER_COPIES[kind]
            inspects += virtual_node.rights.daemon.INSPECTION_COPIES[kind]
        if profiles.defaults.get("resourceClaims", {}).get("enabled"):
            virtual += virtual_node.rights.daemon.UPPER_RESOURCE_CLAIMS
        virtual += read if profiles.names else [*read, *virtual_node.rights.daemon.UPPER_PROFILES_ANY]
        multi += read
        annotates += read if profiles.names else []
        inspects += read
        removes += read if profiles.names else [*read, *operator.UNINSTALL_PROFILES_ANY]
    others = given.get("descheduler", {}).get("virtualNodes", [])
    name = given.get("fullnameOverride", "vn-virtual-node")
    expected = {
        "virtual-node": _asked(case, virtual),
        "webhook": _asked(case, webhook.program.UPPER),
        "descheduler": _asked(case, descheduler.program.UPPER, *others),
        "multi-scheduler": _asked(case, multi),
        "test": _asked(case, operator.DOCTOR),
        "inspection": _asked(case, inspects),
        "uninstall": _asked(case, removes),
        "swarm": _asked(case, (*swarm.program.UPPER, *swarm.program.SWARMS)),
        "annotator": _asked(case, annotates),
        "scheduler": {(*grant[:4], grant[4].replace("vn-virtual-node", name)) for grant in SCHEDULER},
    }
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
    """Groups, resources and verbs are listed, and every role is bound."""
    roles = [item for item in objects(case) if item["kind"] in RBAC]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not any("*" in name for name in rule.get("resourceNames", []))
    bound = {item["roleRef"]["name"] for item in objects(case) if item["kind"] in BINDINGS}
    assert {role["metadata"]["name"] for role in roles} <= bound


@pytest.mark.parametrize("case", CASES)
def test_bindings_are_to_existing_accounts(case):
    """A binding names a ServiceAccount of this release, in its namespace."""
    accounts = {item["metadata"]["name"] for item in objects(case) if item["kind"] == "ServiceAccount"}
    for binding in (item for item in objects(case) if item["kind"] in BINDINGS):
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
    """They differ from those of `--register` only in names, the excluded namespaces and the source of the CA."""
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
    # The leader writes its CA only where it makes the certificates.
    wanted = None if given.get("tls", {}).get("secretName") else "true"
    assert found["metadata"].get("annotations", {}).get(names.ANNOTATION_WANTS_CA) == wanted


@pytest.mark.parametrize("case", [case for case in CASES if case != "default"])
def test_the_schedulers_configuration_is_that_of_the_code(case):
    """Except for the name of the profile and leader election in the release's namespace."""
    given = yaml.safe_load(rendering.values(case)).get("multiScheduler", {})
    found = _scheduler(case)
    service = one(case, "Service", "multi-scheduler")
    host = f"{service['metadata']['name']}.{NAMESPACE}.svc:{service['spec']['ports'][0]['port']}"
    folder = "/etc/virtual-node/extender"
    tls: dict[str, Any] = {
        "ca_file": f"{folder}/ca.crt",
        "cert_file": f"{folder}/tls.crt",
        "key_file": f"{folder}/tls.key",
    }
    has_tls = given.get("tls", {}).get("enabled", True)
    expected = scheduler_configuration(
        f"{'https' if has_tls else 'http'}://{host}",
        weight=given.get("weight", 5),
        bind=given.get("bind", True),
        leader_elect=True,
        **(tls if has_tls else {}),
    )
    assert len(found.pop("profiles")) == len(expected.pop("profiles"))
    election = found.pop("leaderElection")
    assert election.pop("resourceNamespace") == NAMESPACE
    assert election.pop("resourceName").endswith("-scheduler")
    assert election == expected.pop("leaderElection")
    assert found == expected


@pytest.mark.parametrize("case", [case for case in CASES if case not in {"default", "no-webhook"}])
def test_extender_and_scheduler_authenticate_each_other(case, tmp_path):
    """The extender requires a certificate that the scheduler has, from existing Secrets; neither has the other's key."""
    arguments = _arguments(case, "multi-scheduler")
    extender, scheduler = (
        next(
            item["spec"]["template"]["spec"]
            for item in objects(case)
            if item["kind"] == "Deployment"
            and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )
        for component in ("multi-scheduler", "scheduler")
    )
    mounted = {
        volume["secret"]["secretName"]: [item["key"] for item in volume["secret"]["items"]]
        for volume in scheduler["volumes"]
        if "secret" in volume
    }
    made = _secrets(case)
    if case == "certificates":
        assert made == []
        assert mounted == {"scheduler-cert": ["ca.crt", "tls.crt", "tls.key"]}
        assert "--client-ca=/etc/virtual-node/tls/ca.crt" in arguments
        assert "--client-names=scheduler,other" in arguments
        assert {"name": "tls", "secret": {"secretName": "extender-cert"}} in extender["volumes"]
        return
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    assert made == [options["--secret-name"], options["--client-secret-name"]]
    assert mounted == {options["--client-secret-name"]: ["ca.crt", "tls.crt", "tls.key"]}
    assert options["--service-name"] == one(case, "Service", "multi-scheduler")["metadata"]["name"]
    assert not [
        volume for volume in extender["volumes"] if volume.get("secret", {}).get("secretName") in made
    ]
    for secret in (item for item in objects(case) if item["metadata"]["name"] in made):
        assert "data" not in secret, "an upgrade would empty it"


def test_the_webhook_selects_the_charts_scheduler_only_if_installed():
    """Labelled pods are not assigned to a missing scheduler."""
    assert "--scheduler-name=virtual-node-scheduler" in _arguments("one-cluster", "-webhook")
    assert not [text for text in _arguments("default", "-webhook") if text.startswith("--scheduler-name")]
    profiles = _scheduler("everything")["profiles"]
    assert profiles == [{"schedulerName": "clusters-scheduler"}]
    assert "--scheduler-name=clusters-scheduler" in _arguments("everything", "-webhook")


def test_the_webhook_selects_a_scheduler_that_is_installed_for_cluster_profiles_only():
    """Without it, pods would be placed by the default scheduler, which does not know the lower nodes."""
    rendered = rendering.render(
        "virtualNode: {clusterProfiles: {namespace: fleet, providers: [{name: p, execConfig: {command: /p}}]}}"
    )
    by_name = {item["metadata"]["name"]: item for item in rendered if item["kind"] == "Deployment"}
    assert any(name.endswith("-scheduler") for name in by_name)
    (webhook,) = (item for name, item in by_name.items() if name.endswith("-webhook"))
    assert (
        "--scheduler-name=virtual-node-scheduler"
        in webhook["spec"]["template"]["spec"]["containers"][0]["args"]
    )


@pytest.mark.parametrize("case", CASES)
def test_programs_accept_the_configuration_with_the_clusters_of_the_values(case):
    given = yaml.safe_load(rendering.values(case)).get("virtualNode", {})
    clusters = [cluster["name"] for cluster in given.get("clusters", [])]
    config = _configuration(case)
    assert [cluster.name for cluster in config.clusters] == clusters
    assert config.leader_election.enabled, "with one replica, too: during an upgrade there are two"
    for component in ("multi-scheduler", "annotator"):
        if any(item["kind"] == "Deployment" and _component(item) == component for item in objects(case)):
            read = multi_scheduler.config.parse(rendering.configuration(objects(case), component))
            assert [cluster.name for cluster in read.clusters] == clusters


@pytest.mark.parametrize("case", CASES)
def test_kubeconfigs_are_where_the_configuration_says(case):
    """The path of each lower cluster's kubeconfig is a key of a Secret that is mounted there."""
    for component in ("virtual-node", "multi-scheduler", "annotator"):
        deployments = [
            item for item in objects(case) if item["kind"] == "Deployment" and _component(item) == component
        ]
        for deployment in deployments:
            container = deployment["spec"]["template"]["spec"]["containers"][0]
            mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
            for cluster in _configuration(case).clusters:
                assert cluster.kubeconfig.rpartition("/")[0] in mounts


@pytest.mark.parametrize("case", CASES)
def test_arguments_are_valid_flags(case, tmp_path):
    """No flag is misspelt, none lacks what it needs, and files that are named are valid."""
    deployments = [item for item in objects(case) if item["kind"] == "Deployment"]
    for name, program in programs().items():
        component = name.removeprefix(DAEMON)
        for deployment in deployments:
            if not component or not deployment["metadata"]["name"].endswith(component):
                continue
            for volume in deployment["spec"]["template"]["spec"].get("volumes", []):
                if "configMap" in volume:
                    for file, text in one(case, "ConfigMap", volume["configMap"]["name"])["data"].items():
                        (tmp_path / file).write_text(text, encoding="utf-8")
            program.parse([_MOUNTED.sub(f"{tmp_path}/", text) for text in _arguments(case, component)])
    for item in objects(case):
        if item["kind"] == "CronJob":
            (container,) = item["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
            assert container["command"] == ["virtual-node", "inspect"]
            inspected = parsers.inspect().parse_args(container["args"])
            assert inspected.history == f"configmap/{_configuration(case).inspection_history}"


def test_the_extender_binds_if_the_scheduler_delegates_it():
    """`multiScheduler.bind` applies to the scheduler, the extender and its rights."""
    assert "--bind" not in _arguments("everything", "multi-scheduler")
    assert "--bind" in _arguments("one-cluster", "multi-scheduler")


def test_the_chart_and_the_program_make_the_same_csi_driver():
    """The program has no right to make it where the chart does."""
    found = one("one-cluster", "CSIDriver", "")
    expected = csi_driver()
    assert found["metadata"]["name"] == expected["metadata"]["name"]
    assert (found["apiVersion"], found["spec"]) == (expected["apiVersion"], expected["spec"])
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}, "bound volumes need it"


def test_makes_no_csi_driver_where_volumes_do_not_follow_pods():
    """Without PVControllers, or where another release makes it."""
    clusters = "clusters: [{name: a, kubeconfigSecret: {name: s}}]"
    for setting in ("config: {enableControllers: []}", "createCSIDriver: false"):
        text = template(f"virtualNode: {{{clusters}, {setting}}}")
        assert "CSIDriver" not in {item["kind"] for item in rendering.parse(text)}


def test_a_swarm_controller_of_one_namespace_writes_only_there():
    """With the flag and a Role; cluster-wide it can only read nodes."""
    items = rendering.parse(
        template("virtualNode: {enabled: false}\nswarm: {enabled: true, namespace: streams}")
    )
    ours = [item for item in items if item["metadata"]["labels"]["app.kubernetes.io/component"] == "swarm"]
    roles = {
        item["metadata"].get("namespace", ""): item["rules"]
        for item in ours
        if item["kind"] in {"Role", "ClusterRole"}
    }
    assert roles.keys() == {"", NAMESPACE, "kube-node-lease", "streams"}
    assert [(rule["resources"], rule["verbs"]) for rule in roles[""]] == [
        (["nodes"], ["get", "list", "watch"])
    ]
    assert roles["streams"] == rules(swarm.program.SWARMS)
    (bound,) = [
        item for item in ours if item["kind"] == "RoleBinding" and item["metadata"]["namespace"] == "streams"
    ]
    assert bound["subjects"][0]["name"].endswith("-swarm")
    (deployment,) = [item for item in ours if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--namespace=streams" in container["args"]


def _policies(values: str, *arguments: str, **release: str) -> dict[str, dict[str, Any]]:
    """Return the admission policies that the chart makes, by component."""
    return {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]
        for item in rendering.render(values, arguments=arguments, **release)
        if item["kind"] == "ValidatingAdmissionPolicy"
    }


def test_policies_match_the_releases_accounts_and_labels():
    """Other users are not restricted; ownership labels equal those of the code."""
    found = _policies(rendering.values("everything"))
    users = {name: spec["matchConditions"][0]["expression"] for name, spec in found.items()}
    accounts = {
        **{name: f"clusters-{name}" for name in ("webhook", "descheduler", "swarm", "test", "uninstall")},
        "virtual-node": "nodes",
        "annotator": "clusters-annotator",
    }
    assert {name: user.partition(" in ")[2] for name, user in users.items()} == {
        name: json.dumps([f"system:serviceaccount:{NAMESPACE}:{account}"])
        for name, account in accounts.items()
    }
    mentioned = {
        "virtual-node": (
            *(csi_driver()["metadata"]["name"], names.ANNOTATION_SELECTED_NODE),
            *(*names.REPORTED_ON_PODS, names.ANNOTATION_REQUIRED_NODE, *ZONES),
        ),
        "descheduler": (
            *(names.TAINT_STALE_CLUSTER, names.ANNOTATION_SILENCE, names.ANNOTATION_DRAIN_STATUS),
            *(names.LABEL_VIRTUAL_POD, names.LABEL_CREATED_BY_DESCHEDULER, names.ANNOTATION_REPLACES),
            *(names.LABEL_NODE_TYPE, names.NODE_TYPE_VIRTUAL),
        ),
        "swarm": (delivery.LABEL_SWARM, swarm.program.PROGRAM.name, names.SWARMS.api_version),
    }
    for policy, texts in mentioned.items():
        expressions = " ".join(
            part["expression"] for field in ("variables", "validations") for part in found[policy][field]
        )
        assert [text for text in texts if f"'{text}'" not in expressions] == [], policy
    protected = ["kube-system", "kube-public", "kube-node-lease", NAMESPACE, "operators"]
    for policy in ("descheduler", "swarm"):
        assert f"!(request.namespace in {json.dumps(protected, separators=(',', ':'))})" in str(
            found[policy]["validations"][0]
        ), policy


@pytest.mark.parametrize(
    ("values", "version", "kinds", "made"),
    some(
        [
            ("{}", "1.29.9", [], False),
            ("{}", "1.30.0", [], True),
            ("{}", "1.33.0-gke.1", [], True),
            ("admissionPolicy: {enabled: false}", "1.33.0", [], False),
            ("admissionPolicy: {enabled: true}", "1.29.9", [], True),
            # Capabilities of the API server are known, and it does not serve them.
            ("{}", "1.33.0", ["v1/Pod"], False),
            ("{}", "1.33.0", ["v1/Pod", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"], True),
        ],
        few=4,
    ),
)
def test_policies_are_made_if_the_api_server_has_them(values, version, kinds, made):
    """Unless a value decides otherwise."""
    found = _policies(values, f"--kube-version={version}", *(f"--api-versions={kind}" for kind in kinds))
    components = {"virtual-node", "descheduler", "webhook", "test", "uninstall"}
    assert set(found) == (components if made else set())


@pytest.mark.parametrize(
    ("namespace", "values", "protected"),
    [
        ("kube-system", "{}", ["kube-system", "kube-public", "kube-node-lease"]),
        (NAMESPACE, "{}", ["kube-system", "kube-public", "kube-node-lease"]),
        (
            NAMESPACE,
            f"admissionPolicy: {{protectedNamespaces: [{NAMESPACE}]}}",
            ["kube-system", "kube-public", "kube-node-lease", NAMESPACE],
        ),
    ],
)
def test_virtual_node_gets_no_tokens_of_protected_namespaces(namespace, values, protected):
    """Even if the release is in one of them; its own namespace is protected only if the values name it."""
    (rule,) = [
        one["expression"]
        for one in _policies(values, namespace=namespace)["virtual-node"]["validations"]
        if "boundObjectRef" in one["expression"]
    ]
    assert f"!(request.namespace in {json.dumps(protected, separators=(',', ':'))})" in rule


def test_policy_applies_to_the_nodes_that_the_virtual_node_impersonates():
    """With requests for serving certificates; RBAC lets the account act as these nodes."""
    (condition,) = _policies(rendering.values("csr"))["virtual-node"]["matchConditions"]
    impersonated = [
        name
        for item in rendering.objects("csr")
        if item["kind"] == "ClusterRole"
        for rule in item["rules"]
        if rule["verbs"] == ["impersonate"] and rule["resources"] == ["users"]
        for name in rule["resourceNames"]
    ]
    assert impersonated
    assert [name for name in impersonated if json.dumps(name) not in condition["expression"]] == []


def test_the_extender_has_read_only_lower_kubeconfigs():
    """The read-only kubeconfig replaces the other one where its Secret exists; a user may name it."""
    found = template(
        "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s, viewer: v}}, {name: b, kubeconfig: text}]}"
    )
    volumes = {
        component: {
            volume["name"]: volume
            for item in rendering.parse(found)
            if item["kind"] == "Deployment" and item["metadata"]["name"] == component
            for volume in item["spec"]["template"]["spec"]["volumes"]
        }
        for component in ("vn-virtual-node", "vn-virtual-node-multi-scheduler")
    }
    assert volumes["vn-virtual-node"]["cluster-a"]["secret"]["secretName"] == "s"
    sources = volumes["vn-virtual-node-multi-scheduler"]["cluster-a"]["projected"]["sources"]
    # if both have a key, the later source applies
    assert sources == [{"secret": {"name": "s"}}, {"secret": {"name": "v", "optional": True}}]
    assert len(volumes["vn-virtual-node-multi-scheduler"]["cluster-b"]["projected"]["sources"]) == 1


def test_the_chart_grants_rights_to_every_program():
    """A program without a component in the chart's table would start without any rights."""
    components = {
        re.sub(r"-(\w)", lambda letter: letter[1].upper(), name.removeprefix("virtual-node-"))
        for name in programs()
    }
    assert components == rights.tables().keys()
