"""URLs of the Kubernetes API."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime import resources
from controller_runtime.errors import NotFound
from controller_runtime.resources import Resource


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (resources.PODS, {}, "/api/v1/pods"),
        (resources.PODS, {"namespace": ""}, "/api/v1/pods"),
        (resources.PODS, {"namespace": "a"}, "/api/v1/namespaces/a/pods"),
        (resources.PODS, {"namespace": "a", "name": "b"}, "/api/v1/namespaces/a/pods/b"),
        (
            resources.PODS,
            {"namespace": "a", "name": "b", "subresource": "status"},
            "/api/v1/namespaces/a/pods/b/status",
        ),
        (resources.NODES, {"name": "n"}, "/api/v1/nodes/n"),
        (resources.NODES, {"name": "n" * 253}, f"/api/v1/nodes/{'n' * 253}"),
        (resources.NODES, {"name": "n", "namespace": "ignored"}, "/api/v1/nodes/n"),
        (
            resources.LEASES,
            {"namespace": "kube-node-lease", "name": "n"},
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n",
        ),
        (resources.DEPLOYMENTS, {}, "/apis/apps/v1/deployments"),
    ],
)
def test_paths(resource: Resource, arguments: dict[str, str], path: str) -> None:
    """Collections, objects and subresources, core and named groups, namespaced or not."""
    assert resource.path(**arguments) == path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"namespace": "a", "name": ""}, "the name ''"),
        ({"namespace": "a", "name": ".."}, r"the name '\.\.'"),
        ({"namespace": "a", "name": "b%2Fc"}, "the name 'b%2Fc'"),
        ({"namespace": "a", "name": "../secrets/b"}, "the name '../secrets/b'"),
        ({"namespace": "..", "name": "b"}, r"the namespace '\.\.'"),
        ({"namespace": "a", "name": "b" * 254}, "a name of 254 characters"),
        ({"namespace": "a" * 254}, "a namespace of 254 characters"),
    ],
)
def test_object_with_impossible_name_does_not_exist(arguments: dict[str, str], message: str) -> None:
    """A name never leads out of its own path, and a name that a user wrote into a reference is no other error."""
    with pytest.raises(NotFound, match=message) as caught:
        resources.PODS.path(**arguments)
    assert caught.value.status["reason"] == "NotFound"


def test_namespace_is_required() -> None:
    with pytest.raises(ValueError, match="Pod b: namespace is missing"):
        resources.PODS.path(name="b")


@given(
    st.text(min_size=1, max_size=253).filter(
        lambda text: not {"/", "%"} & set(text) and text not in {".", ".."}
    )
)
def test_any_name_stays_one_segment(name: str) -> None:
    """Special characters are escaped."""
    path = resources.CONFIG_MAPS.path(namespace="a", name=name)
    head, _, last = path.rpartition("/")
    assert head == "/api/v1/namespaces/a/configmaps"
    assert unquote(last, errors="surrogatepass") == name
    assert not set(last) & set("?#% ") - {"%"}


def test_api_version_and_qualified_name() -> None:
    """The core group has no prefix, others do; the qualified name is kubectl's."""
    assert (resources.PODS.api_version, resources.PODS.qualified) == ("v1", "pods")
    assert (resources.DEPLOYMENTS.api_version, resources.DEPLOYMENTS.qualified) == (
        "apps/v1",
        "deployments.apps",
    )


def test_every_resource_is_distinct() -> None:
    """No two constants name the same collection, and plurals are lower case."""
    found = [value for value in vars(resources).values() if isinstance(value, Resource)]
    assert len({resource.path() for resource in found}) == len(found) > 20
    assert all(resource.plural == resource.plural.lower() for resource in found)
