"""The mode and user of the file of a token: as on a real node, as far as the file of a Secret allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterset.model.pod import api_access
from tests.unit.virtual_node.translate.pods.pods import CLUSTER, upper_pod
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod, service_account

OPTIONS = PodOptions(owner=Owner(CLUSTER, "vn"))


def _mode(of_pod: dict[str, Any] | None, *of_containers: dict[str, Any] | None) -> int | None:
    """Return the mode of the token in the lower pod; the second security context is of an init container."""
    pod = json.loads(json.dumps(upper_pod()))
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    spec.pop("initContainers", None)
    if of_pod is not None:
        spec["securityContext"] = of_pod
    made = [
        {**container, "name": f"c{number}"} | ({} if own is None else {"securityContext": own})
        for number, own in enumerate(of_containers or (None,))
    ]
    spec["containers"], spec["initContainers"] = made[:1], made[1:]
    lower = lower_pod.lower_pod(pod, OPTIONS)["spec"]
    service_account.with_token_modes(lower, pod, OPTIONS)
    (source, *_) = lower["volumes"][0]["projected"]["sources"]
    mode: int | None = source["secret"]["items"][0].get("mode")
    return mode


@pytest.mark.parametrize(
    ("of_pod", "of_containers", "mode"),
    [
        (None, [], None),
        ({}, [{}], None),
        ({"fsGroup": 2000}, [], 0o600),  # the kubelet makes it 0640 of that group
        ({"fsGroup": 0, "runAsUser": 1000}, [], 0o600),
        ({"fsGroup": 2000}, [{"runAsUser": 1}, {"runAsUser": 2}], 0o600),
        ({"runAsUser": 1000}, [], 0o644),
        ({"runAsUser": 1000}, [{}, {"runAsUser": 1000}], 0o644),
        ({"runAsUser": 1000}, [{"runAsUser": None}], 0o644),
        (None, [{"runAsUser": 1000}, {"runAsUser": 1000}], 0o644),
        ({"runAsUser": 1000}, [{}, {"runAsUser": 1001}], None),
        (None, [{"runAsUser": 1000}, {}], None),
        ({"runAsUser": 0}, [], 0o600),
        ({"runAsUser": 1000}, [{"runAsUser": 0}], 0o600),
        ({"runAsUser": 1000, "runAsGroup": 0}, [], 0o640),
        ({"runAsUser": 1000, "runAsGroup": 0}, [{}, {"runAsGroup": 5}], 0o644),
        ({"runAsUser": 1000}, [{"runAsGroup": 0}, {"runAsGroup": 0}], 0o640),
        ({"runAsUser": 1000, "supplementalGroups": [7, 0]}, [{"runAsGroup": 5}], 0o640),
        ({"runAsGroup": 0}, [], None),
    ],
)
def test_the_mode_of_a_token_is_as_narrow_as_its_containers_can_read(
    of_pod: dict[str, Any] | None, of_containers: list[dict[str, Any]], mode: int | None
):
    """The file of a Secret belongs to root, with or without the group ``fsGroup``."""
    assert _mode(of_pod, *of_containers) == mode


@pytest.mark.parametrize("fields", [{"name": "own", "items": [{"key": "token", "path": "own"}]}, {}])
def test_secrets_of_users_keep_their_modes(fields: dict[str, Any]):
    """Only the files of tokens have an owner of their own on real nodes. A user may know the name of a Secret with tokens."""
    pod = json.loads(json.dumps(upper_pod()))
    pod["spec"]["securityContext"] = {"fsGroup": 1}
    name = api_access.token_secret_name(pod["metadata"]["name"], pod["metadata"]["uid"])
    own = {"secret": {"name": name, **fields}}
    pod["spec"]["volumes"][0]["projected"]["sources"].append(own)
    lower = lower_pod.lower_pod(pod, OPTIONS)["spec"]
    service_account.with_token_modes(lower, pod, OPTIONS)
    assert lower["volumes"][0]["projected"]["sources"][-1] == own


def test_a_token_has_the_user_that_its_source_names():
    """The Secret's item has the same field."""
    pod = json.loads(json.dumps(upper_pod()))
    source = {"serviceAccountToken": {"path": "token", "user": 0}}
    pod["spec"]["volumes"] = [{"name": "v", "projected": {"sources": [source]}}]
    (volume,) = lower_pod.lower_pod(pod, OPTIONS)["spec"]["volumes"]
    (item,) = volume["projected"]["sources"][0]["secret"]["items"]
    assert item["user"] == 0


def test_a_token_that_old_admission_mounted_is_replaced_by_one_of_the_lower_cluster():
    """Before Kubernetes 1.22 it was a Secret volume. The pod's other volumes and mounts stay."""
    own = {"name": "own", "secret": {"secretName": "own"}}
    cache = {"name": "cache", "emptyDir": {}}
    at_own = {"name": "own", "mountPath": "/own"}
    at_token = {"name": "default-token-x", "mountPath": service_account.MOUNT_PATH}
    spec: dict[str, Any] = {
        "volumes": [own, {"name": "default-token-x", "secret": {"secretName": "default-token-x"}}, cache],
        "containers": [{"name": "main", "volumeMounts": [at_own, at_token]}],
    }
    service_account.with_lower_identity(spec)
    assert spec["volumes"] == [own, cache]
    assert spec["containers"][0]["volumeMounts"] == [at_own]


def test_a_volume_of_the_user_at_the_path_of_the_token_stays():
    """It hides the token on purpose, and admission adds none."""
    volumes = [{"name": "empty", "emptyDir": {}}]
    mounts = [{"name": "empty", "mountPath": service_account.MOUNT_PATH}]
    spec: dict[str, Any] = {
        "volumes": list(volumes),
        "containers": [{"name": "main", "volumeMounts": list(mounts)}],
    }
    service_account.with_lower_identity(spec)
    assert (spec["volumes"], spec["containers"][0]["volumeMounts"]) == (volumes, mounts)
