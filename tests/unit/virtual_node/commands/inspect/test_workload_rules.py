"""Rules about workloads, nodes, DNS, Services and webhooks: each has a state with its finding and one without."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.virtual_node.commands.healthy_clusters import (
    OWNER,
    Change,
    ago,
    bodies,
    both,
    forget,
    healthy,
    inspect,
    lower,
    meta,
    sets,
    upper,
    worries,
)
from virtual_node.examine import engine
from virtual_node.examine.clusters import DNS_SERVICES, FOREIGN_SLICES, SERVICE_BACKENDS
from virtual_node.examine.codes import CHECKS, Code
from virtual_node.examine.engine import Level, Rule
from virtual_node.examine.facts import LEASES
from virtual_node.examine.finding import Findings
from virtual_node.examine.snapshot import Fact, Snapshot, objects
from virtual_node.translate.base.ownership import ownership_labels

WEB = ("Deployment", "shop/web")
TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "containers": [{"readinessProbe": {"periodSeconds": 1}, "lifecycle": {"preStop": {"sleep": {}}}}]
    },
}


def workload(kind: str = "Deployment", *, served: bool = True, budget: bool = True, **spec: Any) -> Change:
    """Own the healthy pod by a workload that an update cannot interrupt, except for what ``spec`` changes."""

    def change(facts: Snapshot) -> None:
        put = facts.upper.put
        owner = (
            {"kind": "ReplicaSet", "name": "web-abc"}
            if kind == "Deployment"
            else {"kind": kind, "name": "web"}
        )
        for pod in (upper(facts), lower(facts)):
            pod["metadata"]["labels"] |= {"pod-template-hash": "abc"}
        upper(facts)["metadata"]["ownerReferences"] = [owner]
        whole = {"replicas": 3, "template": copy.deepcopy(TEMPLATE), **spec}
        put(objects(kind), [{"metadata": meta("web", "u-deploy"), "spec": whole}])
        selector = {"matchLabels": {"app": "web"}} if budget else {"matchLabels": {"app": "other"}}
        put(
            objects("PodDisruptionBudget"),
            [{"metadata": meta("web", "u-pdb"), "spec": {"selector": selector}}],
        )
        if served:
            slice_ = meta("web-1", "u-slice", labels={"kubernetes.io/service-name": "web"})
            put(
                objects("Service"), [{"metadata": meta("web", "u-svc"), "spec": {"selector": {"app": "web"}}}]
            )
            put(objects("EndpointSlice"), [{"metadata": slice_, "isServing": True}])

    return change


def rolling(unavailable: int | str, surge: int | str = 0) -> dict[str, Any]:
    """Return a Deployment's strategy."""
    return {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}


def backend(*, serving: bool, policy: str = "Fail", resource: str = "pods") -> Change:
    """Give the lower cluster a DNS Service and a webhook, with or without a ready endpoint."""

    def change(facts: Snapshot) -> None:
        labels = {"kubernetes.io/service-name": "kube-dns"}
        service = {"namespace": "kube-system", "name": "kube-dns"}
        lists: dict[Fact[Any], Any] = {
            DNS_SERVICES: [{"metadata": {"namespace": "kube-system", "name": "kube-dns"}}],
            SERVICE_BACKENDS: [{"metadata": {**service, "labels": labels}, "isServing": serving}],
            objects("ValidatingWebhookConfiguration"): [
                {
                    "metadata": {"name": "guard"},
                    "webhooks": [
                        {
                            "name": "w",
                            "failurePolicy": policy,
                            "clientConfig": {"service": service},
                            "rules": [{"resources": [resource]}],
                        }
                    ],
                }
            ],
        }
        for listed, found in lists.items():
            facts.lowers[0].put(listed, found)

    return change


def node_condition(kind: str, status: str = "True") -> Change:
    """Add a condition to the first lower node."""
    return lambda facts: lower(facts, "Node")["status"]["conditions"].append({"type": kind, "status": status})


def stray(*, is_copied: bool) -> Change:
    """Add an EndpointSlice of others to a lower Service, which may be a copy."""

    def change(facts: Snapshot) -> None:
        labels = {
            "kubernetes.io/service-name": "back",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io",
        }
        if is_copied:
            above = meta("back", "u-back")
            bodies(facts.upper, "Service").append({"metadata": above, "spec": {}})
            copy_ = meta("back", "l-back", labels=ownership_labels(OWNER, "u-back"))
            bodies(facts.lowers[0], "Service").append({"metadata": copy_, "spec": {}})
        facts.lowers[0].put(FOREIGN_SLICES, [{"metadata": meta("back-x", "s", labels=labels)}])

    return change


DNS = ("error", "dns", "Service", "kube-system/kube-dns")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # --- disruption
        (workload(), []),
        (workload("StatefulSet"), []),
        (workload(replicas=1), [("warning", "single-replica", *WEB)]),
        (workload("StatefulSet", replicas=1), [("warning", "single-replica", "StatefulSet", "shop/web")]),
        (workload(replicas=0), []),
        (workload(strategy=rolling("100%")), [("warning", "max-unavailable", *WEB)]),
        (workload(strategy=rolling(3, 1)), [("warning", "max-unavailable", *WEB)]),
        (workload(replicas=2, strategy=rolling("50%")), []),
        (workload(strategy={"type": "Recreate"}), [("warning", "max-unavailable", *WEB)]),
        (workload(budget=False), [("warning", "no-disruption-budget", *WEB)]),
        (both(workload(budget=False), lambda facts: forget(facts.upper, "PodDisruptionBudget")), []),
        (
            workload(template={**TEMPLATE, "spec": {"containers": [{"name": "c"}]}}),
            [("warning", "no-readiness-probe", *WEB)],
        ),
        (workload(served=False, template={**TEMPLATE, "spec": {"containers": [{"name": "c"}]}}), []),
        # Pods on real nodes are not ours, although they have such a workload.
        (both(workload(replicas=1), sets(upper, "spec", "nodeName", "real"),
              lambda facts: bodies(facts.lowers[0], "Pod").clear()), []),
        # --- services
        (
            both(workload(), lambda facts: bodies(facts.upper, "EndpointSlice")[0].update(isServing=False)),
            [("warning", "service", "Service", "shop/web")],
        ),
        (
            both(workload(), lambda facts: bodies(facts.upper, "EndpointSlice").clear(),
                 sets(upper, "metadata", "creationTimestamp", ago(minutes=4))),
            [],
        ),
        (stray(is_copied=True), [("warning", "foreign-endpoints", "Service", "shop/back")]),
        (stray(is_copied=False), []),
        # --- DNS and webhooks
        (backend(serving=True), []),
        (backend(serving=False), [("error", "webhook", "ValidatingWebhookConfiguration", "guard/w"), DNS]),
        (
            backend(serving=False, resource="configmaps"),
            [DNS, ("warning", "webhook", "ValidatingWebhookConfiguration", "guard/w")],
        ),
        (backend(serving=False, policy="Ignore"), [DNS]),
        # --- lower nodes
        (node_condition("MemoryPressure"), [("warning", "pressure", "Node", "n1")]),
        (node_condition("DiskPressure", "False"), []),
        (
            lambda facts: lower(facts, "Node")["status"]["nodeInfo"].update(kubeletVersion="v1.30.1"),
            [("warning", "version", "Node", "n1")],
        ),
        (lambda facts: lower(facts, "Node")["status"]["nodeInfo"].update(kubeletVersion="v1.31.1"), []),
        (
            lambda facts: lower(facts, "Node")["status"]["nodeInfo"].update(kubeletVersion="v1.35.0"),
            [("warning", "version", "Node", "n1")],
        ),
    ],
)  # fmt: skip
def test_finding(change: Change, expected: list[tuple[str, str, str, str]]) -> None:
    """Severity, check, kind and object; every finding has a next step."""
    facts = healthy()
    change(facts)
    assert worries(facts=facts) == expected
    assert all(one.next_step for one in inspect(facts) if one.severity != "info")


def test_a_missing_pre_stop_hook_is_information():
    """Most workloads have none."""
    facts = healthy()
    workload(template={**TEMPLATE, "spec": {"containers": [{"readinessProbe": {"periodSeconds": 1}}]}})(facts)
    found = [one for one in inspect(facts) if one.check == "no-pre-stop"]
    assert [(one.severity, one.object) for one in found] == [("info", "shop/web")]


def test_a_broken_rule_is_reported_and_skipped(monkeypatch: pytest.MonkeyPatch):
    """The findings of the other rules are complete."""

    def broken(_: Snapshot) -> Findings:
        yield from ()
        raise KeyError("spec")

    facts = healthy()
    facts.upper.unread = {LEASES: "no"}
    broken_rule = Rule([Code.DRIFT], broken, Level.PATH)
    monkeypatch.setattr(engine, "RULES", [broken_rule, *engine.RULES])
    assert worries(facts=facts) == [("error", "rule", "Rule", "broken"), ("warning", "unread", "Lease", "*")]


def test_every_check_is_documented():
    """In the table of docs/reference/cli.md, by the names that the flag ``--ignore`` takes."""
    text = (Path(__file__).parents[5] / "docs/reference/cli.md").read_text(encoding="utf-8")
    table = text.partition("\n## inspect")[2]
    assert {"leaked", "version"} < set(CHECKS)
    assert [check for check in CHECKS if f"| `{check}` |" not in table and check != "others"] == []
