"""``virtual-node check``: obstacles of the daemon, each in a row with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.unit.controller_runtime.loopback import reply, serve
from tests.unit.virtual_node.commands.run_command import NODES, Person, kubeconfig

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def _answers(uid: str) -> dict[str, Any]:
    return {
        "/version": lambda _request: reply({"gitVersion": "v1.34.1", "minor": "34"}),
        REVIEWS: lambda _request: reply({"status": {"allowed": True}}, status=201),
        "/api/v1/namespaces/kube-system": lambda _request: reply({"metadata": {"uid": uid}}),
    }


async def _check(person: Person, folder: Path, *flags: str, denied: str = "") -> tuple[int, str]:
    """Return exit code and output with a lower cluster that denies a subresource of pods."""

    async def lower(request: web.Request) -> web.StreamResponse:
        if request.path == REVIEWS:
            asked = (await request.json())["spec"]["resourceAttributes"]
            return reply({"status": {"allowed": asked.get("subresource") != denied}}, status=201)
        known = _answers("lower").get(request.path)
        return known(request) if known is not None else reply({}, status=404)

    (folder / "lower").mkdir()
    real = {"metadata": {"name": "worker", "labels": {"kubernetes.io/os": "linux"}}}
    async with serve(lower) as server:
        file = kubeconfig(folder / "lower", server.url)
        code, out, _ = await person.types(
            "check", f"--client-kubeconfig={file}", *flags, answers=_answers("upper"), objects={NODES: [real]}
        )
    return code, out


async def test_a_resource_has_one_row_and_the_lower_cluster_its_role(person: Person, tmp_path: Path):
    """Resources of the same name in two API groups are shown with the group."""
    code, out = await _check(person, tmp_path, "-o", "json")
    findings = json.loads(out)["findings"]
    rows = [(one["cluster"], one["check"]) for one in findings]
    assert code == 0
    assert {cluster for cluster, _ in rows} == {"upper", "lower"}
    assert len(set(rows)) == len(rows)
    assert ("lower", "may pods") in rows
    assert ("lower", "may pods.metrics.k8s.io") in rows
    leases = next(one for one in findings if one["check"] == "may leases")
    assert leases["detail"] == "create, get, update"


async def test_an_api_server_that_pods_cannot_use_is_a_warning(person: Person, tmp_path: Path):
    """Here it listens on loopback. It is no failure, because pods may not use the API."""

    async def row(name: str, *flags: str) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        code, out = await _check(person, tmp_path / name, "-o", "json", *flags)
        assert code == 0
        (found,) = (one for one in json.loads(out)["findings"] if one["check"] == "API of pods")
        return dict(found)

    local = await row("local")
    assert local["detail"].startswith("warning: Pods cannot reach the upper API server at http")
    assert local["fix"].startswith("set kubernetesServiceURL")
    mixed = await row("mixed", "--kubernetes-service=lower")
    assert mixed["detail"].startswith("warning: the lower API servers refuse the upper tokens")
    assert mixed["fix"] == "set kubernetesService: Auto"
    found = await row("lower", "--kubernetes-service=lower", "--enable-serviceaccount=false")
    assert found["detail"] == "the lower cluster's, with tokens of the lower cluster"
    found = await row("given", "--kubernetes-service-url=https://192.0.2.1:6443")
    assert found["detail"] == "192.0.2.1 port 6443, and kubernetes.default.svc port 443"


async def test_a_missing_right_is_named(person: Person, tmp_path: Path):
    """With the rule to grant, and its purpose."""
    code, out = await _check(person, tmp_path, "-o", "json", denied="exec")
    (wrong,) = [one for one in json.loads(out)["findings"] if not one["ok"]]
    assert (code, wrong["check"]) == (1, "may pods/exec")
    assert wrong["fix"] == 'grant get, create on pods/exec (apiGroup ""): kubectl exec'


async def test_failures_come_first(person: Person, tmp_path: Path):
    """They would be lost among twenty good lines."""
    code, out = await _check(person, tmp_path, denied="exec")
    assert code == 1
    assert "may pods/exec" in out.splitlines()[1]


async def test_quiet_prints_only_failures_warnings_and_the_conclusion(person: Person, tmp_path: Path):
    """The API server of the test is a local one, which pods cannot reach."""
    code, out = await _check(person, tmp_path, "-q", denied="exec")
    failure, warning, conclusion = out.splitlines()
    assert code == 1
    assert failure.startswith("lower: may pods/exec: no: ")
    assert " -> grant get, create on pods/exec" in failure
    assert warning.startswith("upper: API of pods: ok: warning: ")
    assert conclusion.startswith("1 of ")


async def test_a_real_nodes_name_is_refused(person: Person, tmp_path: Path):
    """As at the daemon's start; a free name is ok."""
    code, out = await _check(person, tmp_path, "--nodename=worker", "-o", "json")
    (wrong,) = [one for one in json.loads(out)["findings"] if not one["ok"]]
    assert (code, wrong["check"], wrong["detail"]) == (1, "node name", "worker")
    assert "not virtual, and it is not changed; choose another name" in wrong["fix"]


async def test_the_upper_cluster_as_the_lower_one_is_refused(person: Person, tmp_path: Path):
    """By their identities."""
    file = tmp_path / "kubeconfig"  # the upper one's
    code, out, _ = await person.types("check", f"--client-kubeconfig={file}", answers=_answers("upper"))
    assert code == 1
    assert "its kubeconfig leads to the upper cluster: give that of another cluster" in out


async def test_differences_from_the_file_of_the_multi_scheduler_are_failures(person: Person, tmp_path: Path):
    """Each is a row with the field and both values."""
    other = tmp_path / "multi-scheduler.yaml"
    other.write_text(
        "kind: MultiSchedulerConfiguration\nagents: [{name: fit}]\n"
        "clusters: [{name: lower, kubeconfig: k, policy: {hostPorts: true}}]\n"
    )
    code, out = await _check(person, tmp_path, f"--multi-scheduler-config={other}", "-o", "json")
    (row,) = [one for one in json.loads(out)["findings"] if one["check"] == "multi-scheduler"]
    assert code == 1
    assert (row["cluster"], row["ok"]) == ("lower", False)
    assert row["detail"] == f"policy.hostPorts: unset, in {other}: true"
