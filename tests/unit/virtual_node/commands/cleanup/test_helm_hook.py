"""The uninstall Job works only during an uninstallation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from virtual_node.commands.cleanup import command
from virtual_node.commands.cleanup.command import made_by_kubectl, runs_hooks, uninstalls

HELM = {"meta.helm.sh/release-name": "vn", "meta.helm.sh/release-namespace": "system"}
ARGO = {"argocd.argoproj.io/tracking-id": "vn:apps/Deployment:system/vn-virtual-node"}
APPLIED = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}


WHOLE = {"f:metadata": {"f:labels": {"f:helm.sh/chart": {}}}, "f:spec": {"f:selector": {}, "f:template": {}}}
"""managedFields after applying the output of `helm template`."""
HELMS = {"f:metadata": {"f:annotations": {"f:meta.helm.sh/release-name": {}}}, "f:spec": {"f:selector": {}}}
"""managedFields of Helm 4, with server-side apply."""


def _owner(manager: str, fields: dict[str, Any], *, operation: str = "Apply") -> dict[str, Any]:
    return {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields}


def _metadata(annotations: dict[str, str], *owners: dict[str, Any]) -> dict[str, Any]:
    return {"annotations": annotations, "managedFields": list(owners)}


def _client(*found: dict[str, Any], job: dict[str, Any] | None = None) -> Any:
    where = {"name": "vn-uninstall", "namespace": "system"}
    deployments: list[dict[str, Any]] = [
        {"kind": "Deployment", "metadata": {**where, "name": f"d{number}", **metadata}}
        for number, metadata in enumerate(found)
    ]
    jobs: list[dict[str, Any]] = [{"kind": "Job", "metadata": {**where, **(job or {})}}]
    there = {
        (resources.DEPLOYMENTS, "app.kubernetes.io/instance=vn"): deployments,
        (resources.JOBS, "app.kubernetes.io/instance=vn,app.kubernetes.io/component=uninstall"): jobs,
    }

    async def listed(resource, *, namespace, label_selector):
        assert namespace == "system"
        return SimpleNamespace(items=[from_dict(one) for one in there[resource, label_selector]])

    async def get(_resource, name, *, namespace):
        assert namespace == "system"
        (one,) = (one for one in [*deployments, *jobs] if one["metadata"]["name"] == name)
        return one

    return SimpleNamespace(list=listed, get=get)


@pytest.mark.parametrize(
    ("metadata", "runs"),
    [
        pytest.param(_metadata(HELM, _owner("helm", HELMS, operation="Update")), True, id="Helm 3"),
        pytest.param(_metadata(HELM, _owner("helm", HELMS)), True, id="Helm 4, on the server's side"),
        pytest.param(_metadata(HELM, _owner("helm-controller", HELMS)), True, id="Flux"),
        pytest.param(_metadata(ARGO | APPLIED), True, id="Argo CD, on the client's side"),
        pytest.param(
            _metadata(ARGO, _owner("argocd-controller", WHOLE)), True, id="Argo CD, on the server's side"
        ),
        pytest.param(
            _metadata(HELM, _owner("helm", HELMS), _owner("scaler", {"f:spec": {"f:replicas": {}}})),
            True,
            id="Helm 4, and somebody who applies replicas alone",
        ),
        pytest.param(
            _metadata(HELM, _owner("helm", HELMS), _owner("kubectl-edit", WHOLE, operation="Update")),
            True,
            id="Helm 4, and kubectl edit",
        ),
        pytest.param(_metadata(APPLIED), False, id="helm template | kubectl apply"),
        pytest.param(
            _metadata({}, _owner("kubectl", WHOLE)), False, id="helm template | kubectl apply --server-side"
        ),
        pytest.param({}, False, id="kubectl create"),
        pytest.param(_metadata(HELM | APPLIED), False, id="installed by Helm once, applied since"),
        pytest.param(
            _metadata(HELM, _owner("helm", HELMS), _owner("kubectl", WHOLE)),
            False,
            id="installed by Helm once, applied since on the server's side",
        ),
    ],
)
async def test_the_field_manager_shows_whether_hooks_run(metadata, runs):
    """Helm and Argo CD run the Job when they delete; with others it exists because it was applied."""
    assert runs_hooks(metadata) is runs
    client = _client(_metadata(HELM), metadata)
    if runs:
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")
        return
    with pytest.raises(ConfigError, match=r"Deployment system/d1 .* nothing was done.*--no-hooks"):
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")


JOB: dict[str, Any] = {"f:spec": {"f:template": {}}}


@pytest.mark.parametrize(
    ("job", "runs"),
    [
        pytest.param(_metadata({}, _owner("helm", JOB, operation="Update")), True, id="Helm 3"),
        pytest.param(_metadata({}, _owner("helm", JOB)), True, id="Helm 4"),
        pytest.param(
            _metadata(
                {}, _owner("helm", JOB), _owner("kubectl-annotate", {"f:metadata": {}}, operation="Update")
            ),
            True,
            id="Helm 4, and kubectl annotate",
        ),
        pytest.param(_metadata(ARGO | APPLIED, _owner("kubectl-client-side-apply", JOB)), True, id="Argo CD"),
        pytest.param(_metadata({}, _owner("kubectl", JOB)), False, id="kubectl apply --server-side"),
        pytest.param(
            _metadata(APPLIED, _owner("kubectl-client-side-apply", JOB, operation="Update")),
            False,
            id="kubectl apply",
        ),
        pytest.param(
            _metadata({}, _owner("kubectl-create", JOB, operation="Update")), False, id="kubectl create"
        ),
    ],
)
async def test_a_job_of_kubectl_beside_helms_deployments_does_nothing(job, runs):
    """Where each Deployment's apply ends in a conflict with Helm, only the Job shows its field manager."""
    assert made_by_kubectl(job) is not runs
    client = _client(_metadata(HELM, _owner("helm", HELMS)), job=job)
    if runs:
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")
        return
    with pytest.raises(
        ConfigError, match=r"Job system/vn-uninstall was made by kubectl; nothing was done.*--no-hooks"
    ):
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")


async def test_without_deployments_nothing_is_done():
    """A Job may be applied before the Deployments."""
    with pytest.raises(
        ConfigError, match=r"has no Deployment of app\.kubernetes\.io/instance=vn; nothing was done"
    ):
        await uninstalls(_client(), "system", "app.kubernetes.io/instance=vn")


def test_an_applied_job_changes_nothing(monkeypatch):
    """With --as-hook the Deployments are checked first, and the command ends with an error."""
    written: list[str] = []

    class Client:
        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            client = _client(_metadata(APPLIED))
            self.list, self.get = client.list, client.get

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_error: object) -> None:
            pass

        def __getattr__(self, verb: str) -> Any:
            written.append(verb)
            raise AssertionError(verb)

    async def load(*_arguments: Any, **_options: Any) -> None:
        pass

    monkeypatch.setattr("controller_runtime.client.client.Client", Client)
    monkeypatch.setattr(kubeconfig, "load", load)
    with pytest.raises(ConfigError, match="nothing was done"):
        command.main(
            ["--no-clusters", "--as-hook", "--namespace=system", "--selector=app.kubernetes.io/instance=vn"]
        )
    assert written == []
