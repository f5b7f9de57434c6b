"""Containers that users of an upper pod may name: a table of upper and lower containers."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.policy.config import ImageRules, Policy, Rules
from clusterset.model.policy.rules import PolicySet
from virtual_node.translate.pods.containers import reachable

MAIN = {"name": "main"}
PRIVILEGED = {"name": "debug", "securityContext": {"privileged": True}}


def spec(*containers: dict[str, Any], init: Any = (), debug: Any = ()) -> dict[str, Any]:
    """Return a pod spec."""
    return {"containers": [MAIN, *containers], "initContainers": init, "ephemeralContainers": debug}


@pytest.mark.parametrize(
    ("above", "below", "names"),
    [
        (spec(), spec(), {"main"}),
        (spec(init=[{"name": "i"}]), spec(init=[{"name": "i"}]), {"main", "i"}),
        (spec(), spec({"name": "proxy"}), {"main"}),
        (spec(debug=[{"name": "proxy"}]), spec({"name": "proxy"}), {"main"}),
        (spec(debug=[{"name": "proxy"}]), spec(init=[{"name": "proxy"}]), {"main"}),
        (spec(debug=[{"name": "debug"}]), spec(debug=[{"name": "debug"}]), {"main", "debug"}),
        (spec(debug=[{"name": "debug"}]), spec(), {"main", "debug"}),
        (spec(debug=[{"name": "debug"}]), spec(debug=[PRIVILEGED]), {"main"}),
        (spec(debug=[{"name": "debug"}]), spec(debug=[{"name": "other", **PRIVILEGED}, {"name": "debug"}]), {"main"}),
    ],
)  # fmt: skip
def test_containers_of_the_lower_cluster_have_no_name_above(above, below, names):
    """Users can give a debug container the name of a container that was added in the lower cluster."""
    assert reachable(above, below, PolicySet().of("shop")) == names


def test_privileged_debug_containers_are_reachable_if_users_may_add_them():
    """Then a container of the lower cluster has no more rights than one of the user."""
    rules = PolicySet(Policy(namespaces={"trusted-*": Rules(preset="privileged")})).of("trusted-a")
    assert reachable(spec(debug=[{"name": "debug"}]), spec(debug=[PRIVILEGED]), rules) == {"main", "debug"}


def test_images_that_overrides_have_chosen_do_not_hide_debug_containers():
    """The policy is about the image that the user asked for."""
    rules = PolicySet(Policy(images=ImageRules(allow=["registry.example.com/*"]))).of("shop")
    debug = [{"name": "debug", "image": "mirror.example.com/busybox"}]
    assert reachable(spec(debug=debug), spec(debug=debug), rules) == {"main", "debug"}
