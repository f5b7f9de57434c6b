"""``lower-cluster dns``: what it makes, whose objects it refuses, and that ``leave`` removes it."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.commands.installations import Api, thing
from tests.unit.virtual_node.commands.releases import SPACE, TOKYO, record
from virtual_node.commands.common import connect
from virtual_node.commands.lower_cluster import applied, dns, join
from virtual_node.rights.name_server import object_name

NAME = object_name("u-kube-system", "tokyo")


class Lower(Api):
    """A lower cluster that applies objects, and whose first kubelet shows its configuration."""

    async def patch(  # type: ignore[override]
        self, resource: Any, name: str, body: Any, *, namespace: Any = None, **_more: Any
    ) -> Any:
        """Create or replace the object."""
        self.patched.append((name, body))
        kept = [one for one in self.objects if (one.kind, one.name) != (resource.kind, name)]
        metadata = {**body["metadata"], "uid": f"u-{name}"}
        spec = {**body.get("spec", {}), "clusterIP": "10.97.0.53"}
        self.objects = [*kept, from_dict({**body, "metadata": metadata, "spec": spec})]
        return body

    async def delete(self, *where: Any, propagation_policy: str = "", **more: Any) -> Any:
        """Delete the object at once."""
        assert propagation_policy == "Foreground"
        return await super().delete(*where, **more)

    async def read(self, path: str, **_more: Any) -> Any:
        """Return one node, or its kubelet's configuration."""
        if path.endswith("/configz"):
            return {"kubeletconfig": {"clusterDomain": "app.pre", "clusterDNS": ["10.97.0.10"]}}
        return {"items": [thing("Node", "n1")]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that runs the command with both clusters."""

    async def command(
        lower: Lower, *, values: dict[str, Any] | None = None, namespaces: Any = None, **more: Any
    ) -> None:
        cluster = {**TOKYO, "config": {"namespaces": namespaces or {"prefix": "up-"}}}
        upper = Api(
            thing("Namespace", "kube-system"),
            record(config={"virtualNode": {"clusters": [cluster], "config": values or {}}}),
        )

        @contextlib.asynccontextmanager
        async def opened(api: Api) -> AsyncIterator[Api]:
            yield api

        monkeypatch.setattr(connect, "upper", lambda *_a, **_k: opened(upper))
        monkeypatch.setattr(dns, "lower_client", lambda *_a: opened(lower))
        given = {
            "name": "tokyo", "config": "", "namespace": SPACE, "release": None, "lower_dns": "", "lower_domain": "",
            "account_namespace": "virtual-node", "dns_image": "coredns", "apply": True, "dry_run": False,
        }  # fmt: skip
        await dns.run(argparse.Namespace(**{**given, **more}))

    return command


def corefile_of(lower: Lower) -> str:
    """Return the configuration that was applied."""
    (body,) = [body for _, body in lower.patched if body["kind"] == "ConfigMap"]
    return str(body["data"]["Corefile"])


async def test_a_name_server_is_made_for_the_releases_cluster(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the namespaces of the values, and what the lower cluster's kubelet says."""
    lower = Lower()
    await run(lower)
    assert lower.created == ["Namespace/virtual-node"]
    assert [body["kind"] for _, body in lower.patched] == list(dns.KINDS)
    text = corefile_of(lower)
    assert "{1}up-{2}.{3}.app.pre." in text
    assert "forward . 10.97.0.10" in text
    assert 'servers: ["10.97.0.53"]' in capsys.readouterr().out


async def test_without_apply_the_objects_are_printed(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is changed, and the output is only YAML."""
    lower = Lower()
    await run(lower, apply=False)
    assert (lower.created, lower.patched) == ([], [])
    kinds = [one["kind"] for one in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["Namespace", *dns.KINDS]


class _OpenShift(Lower):
    """A lower cluster whose constraints choose the IDs of pods."""

    async def read(self, path: str, **more: Any) -> Any:
        """Return that the API of the constraints is served."""
        if path == "/apis/security.openshift.io/v1":
            return {"resources": [{"name": "securitycontextconstraints"}]}
        return await super().read(path, **more)


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize(("kind", "ids"), [(Lower, {"runAsUser", "runAsGroup"}), (_OpenShift, set())])
async def test_openshift_chooses_the_ids_of_the_name_server(
    run: Any, capsys: pytest.CaptureFixture[str], kind: type[Lower], ids: set[str], *, is_applied: bool
) -> None:
    lower = kind()
    await run(lower, apply=is_applied)
    printed = [] if is_applied else yaml.safe_load_all(capsys.readouterr().out)
    bodies = [body for _, body in lower.patched] if is_applied else printed
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert context.keys() == {"runAsNonRoot", "seccompProfile", *ids}


async def test_openshift_chooses_the_ids_of_probe_and_agent() -> None:
    """The agent of a tunnel has an fsGroup, too. Objects without pods are not changed."""
    agent = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [], "securityContext": agent}}
    deployment = {"kind": "Deployment", "spec": {"replicas": 1, "template": template}}
    clusters: list[tuple[Any, dict[str, Any]]] = [(Api(), agent), (_OpenShift(), {"runAsNonRoot": True})]
    for cluster, ids in clusters:
        found = await applied.admissible(cluster, deployment)
        wanted = {**template, "spec": {"containers": [], "securityContext": ids}}
        assert found == {"kind": "Deployment", "spec": {"replicas": 1, "template": wanted}}
        probe = await applied.admissible(cluster, join.probe_pod("tokyo", "pause:1"))
        assert ("runAsUser" in probe["spec"]["securityContext"]) is (ids is agent)
        assert probe["metadata"] == {"name": "probe"}
        for other in ({"kind": "Secret", "data": {}}, {"kind": "Service", "spec": {"ports": []}}):
            assert await applied.admissible(cluster, other) == other


async def test_flags_win_over_what_the_lower_cluster_says(run: Any) -> None:
    lower = Lower(thing("Namespace", "virtual-node"))
    await run(lower, lower_dns="10.97.0.11", lower_domain="other", values={"clusterDomain": "app.top"})
    text = corefile_of(lower)
    assert "forward . 10.97.0.11" in text
    assert r"(svc|pod)\.app\.top\.$ {1}up-{2}.{3}.other." in text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"namespaces": {"prefix": "a b"}}, "namespaces.prefix 'a b'"),
        ({"namespaces": {"map": {"a": "b {\n}"}}}, "namespaces.map.a"),
        ({"namespaces": {"map": {"a\n}\nx": "b"}}}, "namespaces.map: "),
        ({"namespaces": {"map": {"a": ["b"]}}}, "namespaces"),
        ({"lower_dns": "10.97.0.10\n}"}, "--lower-dns"),
        ({"lower_domain": "a b"}, "--lower-domain"),
        ({"values": {"clusterDomain": "a\nb"}}, "clusterDomain"),
    ],
)
async def test_a_value_that_would_change_the_corefile_is_refused(
    run: Any, wrong: dict[str, Any], message: str
) -> None:
    """Values of a release are not validated by Helm alone."""
    lower = Lower(thing("Namespace", "virtual-node"))
    with pytest.raises(ConfigError, match=message):
        await run(lower, **wrong)
    assert lower.patched == []


async def test_a_cluster_of_a_configuration_file_needs_no_release(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "clusterID: me\nclusterDomain: app.top\nclusters: [{name: tokyo, kubeconfig: k, namespaces: {allowed: [a], map: {a: b}}}]"
    )
    lower = Lower(thing("Namespace", "virtual-node"))
    await run(lower, config=str(file), namespace="none")
    assert {name for name, _ in lower.patched} == {object_name("me", "tokyo")}
    assert r"a\.(svc|pod)\.app\.top\.$ {1}b.{2}.app.pre." in corefile_of(lower)


@pytest.mark.parametrize(
    ("lower", "more", "words"),
    [
        (Lower(thing("Service", NAME, namespace="virtual-node")), {}, "dns --apply' did not make"),
        (Lower(), {"name": "paris"}, "has no cluster paris"),
        (Lower(), {"lower_domain": "a b"}, "--lower-domain: 'a b' is not a DNS domain"),
        (Lower(), {"values": {"clusterDomain": "x}\n."}}, "clusterDomain: 'x}"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    run: Any, lower: Lower, more: dict[str, Any], words: str
) -> None:
    """Objects of others, an unknown cluster, and texts that would change the Corefile."""
    with pytest.raises(ConfigError, match=words):
        await run(lower, **more)


async def test_leave_removes_only_what_apply_made(run: Any) -> None:
    """Objects of another name server stay."""
    other = thing("Service", "virtual-node-dns-other", namespace="virtual-node")
    lower = Lower(thing("Namespace", "virtual-node"), other)
    await run(lower)
    options = argparse.Namespace(name="tokyo", account_namespace="virtual-node", dry_run=False)
    await dns.remove(options, lower, cluster_id="u-kube-system")  # type: ignore[arg-type]
    assert [one.partition("/")[0] for one in lower.deleted] == list(reversed(dns.KINDS))
    assert [one.name for one in lower.objects] == ["virtual-node", "virtual-node-dns-other"]
