"""The uninstall Job does its work where something is uninstalled, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from controller_runtime import kubeconfig
from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from virtual_node.commands import cleanup
from virtual_node.commands.cleanup_hook import runs_hooks, uninstalls

HELM = {"meta.helm.sh/release-name": "vn", "meta.helm.sh/release-namespace": "system"}
ARGO = {"argocd.argoproj.io/tracking-id": "vn:apps/Deployment:system/vn-virtual-node"}
APPLIED = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}


def _client(*annotations: dict[str, str]) -> Any:
    async def listed(_resource, *, namespace, label_selector):
        assert (namespace, label_selector) == ("system", "app.kubernetes.io/instance=vn")
        deployments = [
            {
                "kind": "Deployment",
                "metadata": {"name": f"d{number}", "namespace": "system", "annotations": one},
            }
            for number, one in enumerate(annotations)
        ]
        return SimpleNamespace(items=[from_dict(one) for one in deployments])

    return SimpleNamespace(list=listed)


@pytest.mark.parametrize(
    ("annotations", "runs"),
    [
        pytest.param(HELM, True, id="helm install"),
        pytest.param(ARGO | APPLIED, True, id="Argo CD, which applies on the client's side"),
        pytest.param(APPLIED, False, id="helm template | kubectl apply"),
        pytest.param({}, False, id="kubectl create, or apply on the server's side"),
        pytest.param(HELM | APPLIED, False, id="installed by Helm once, applied since"),
    ],
)
async def test_who_installed_it_says_whether_hooks_are_run(annotations, runs):
    """Helm and Argo CD run the Job when they delete; with anything else it is there because it was applied."""
    assert runs_hooks(annotations) is runs
    client = _client(HELM, annotations)
    if runs:
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")
        return
    with pytest.raises(ConfigError, match=r"Deployment system/d1 .* nothing was done.*--no-hooks"):
        await uninstalls(client, "system", "app.kubernetes.io/instance=vn")


async def test_without_deployments_nothing_is_known_and_nothing_done():
    """A Job that is applied before the Deployments are does not begin either."""
    with pytest.raises(
        ConfigError, match=r"has no Deployment of app\.kubernetes\.io/instance=vn; nothing was done"
    ):
        await uninstalls(_client(), "system", "app.kubernetes.io/instance=vn")


def test_the_job_that_was_applied_touches_nothing(monkeypatch):
    """With --as-hook the look at the Deployments comes before everything else, and ends the command with an error."""
    written: list[str] = []

    class Client:
        def __init__(self, *_arguments: Any, **_options: Any) -> None:
            self.list = _client(APPLIED).list

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_error: object) -> None:
            pass

        def __getattr__(self, verb: str) -> Any:
            written.append(verb)
            raise AssertionError(verb)

    async def load(*_arguments: Any, **_options: Any) -> None:
        pass

    monkeypatch.setattr(cleanup, "Client", Client)
    monkeypatch.setattr(kubeconfig, "load", load)
    with pytest.raises(ConfigError, match="nothing was done"):
        cleanup.main(
            ["--no-clusters", "--as-hook", "--namespace=system", "--selector=app.kubernetes.io/instance=vn"]
        )
    assert written == []
