"""Overrides of lower pods: at creation, for changes of the upper pod, and beside the policy."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.overrides import Override, OverrideSet
from clusterset.model.policy.config import AnnotationRules, ImageRules, Policy
from clusterset.model.policy.rules import PolicySet
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.objects import from_dict
from tests.generated_pods import generate
from tests.unit.virtual_node.translate.pods.pods import OPTIONS, upper_pod
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod, update

MIRROR = {"name": "mirror", "images": [{"from": "docker.io/", "to": "m.example/"}]}
SPOT = {
    "name": "spot",
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "patch": {
        "metadata": {
            "labels": {"team": "a"},
            "annotations": {"iam.amazonaws.com/role": "reader", "note": None},
        },
        "spec": {"containers": [{"name": "*", "resources": {"limits": {"cpu": "0.5"}}}]},
    },
}
RULES = PolicySet(
    Policy(images=ImageRules(allow=["docker.io/*"], deny=["*evil*"]), annotations=AnnotationRules())
)


def options(*configured: dict[str, Any]) -> PodOptions:
    """Return translation options with these overrides."""
    return replace(
        OPTIONS, overrides=OverrideSet([convert(one, Override) for one in configured]), policy=RULES
    )


def created(upper: dict[str, Any], with_options: PodOptions) -> dict[str, Any]:
    """Return the lower pod that is created for an upper pod."""
    return lower_pod.overridden(lower_pod.lower_pod(upper, with_options), upper, with_options)


def follow(
    lower: dict[str, Any], upper: dict[str, Any], now: PodOptions
) -> tuple[update.PodChanges, list[str]]:
    """Return the changes that the virtual node sends, and the refused fields."""
    planned = update.plan(from_dict(upper), from_dict(lower), now, now.policy.of("shop"))
    return planned.changes, [violation.field for violation in planned.refused]


def with_image(image: str, **spec: Any) -> dict[str, Any]:
    """Return an upper pod with another image."""
    pod = upper_pod(**spec)
    pod["spec"]["containers"][0]["image"] = image
    return pod


def test_a_pod_without_overrides_is_unchanged():
    """Also if the cluster has overrides for other pods."""
    pod = upper_pod()
    requested = lower_pod.lower_pod(pod, OPTIONS)
    elsewhere = options({**MIRROR, "namespaces": ["other"]})
    assert lower_pod.overridden(requested, pod, elsewhere) == requested


def test_the_lower_pod_names_its_overrides_and_keeps_its_identity():
    """Recorded keys include those of overrides, so that they are removed with the override."""
    pod, before = upper_pod(), upper_pod()
    lower = created(pod, options(MIRROR, SPOT))
    requested = lower_pod.lower_pod(pod, OPTIONS)
    metadata = lower["metadata"]
    assert pod == before
    assert json.loads(metadata["annotations"][names.ANNOTATION_OVERRIDES]) == {
        "mirror": ["spec.containers[main].image"],
        "spot": [
            "metadata.labels.team",
            "metadata.annotations.note",
            "metadata.annotations[iam.amazonaws.com/role]",
            "spec.containers[main].resources",
            "spec.tolerations",
        ],
    }
    assert metadata["labels"] == {**requested["metadata"]["labels"], "team": "a"}
    assert metadata["annotations"]["iam.amazonaws.com/role"] == "reader"
    assert "note" not in metadata["annotations"]
    note, asked = (
        json.loads(one["metadata"]["annotations"][names.ANNOTATION_APPLIED]) for one in (lower, requested)
    )
    keys = {"labels": ["app", "team"], "annotations": ["iam.amazonaws.com/role"]}
    assert {field: list(value) if field in keys else value for field, value in note.items()} == {
        **asked,
        **keys,
    }
    assert lower["spec"]["containers"][0]["image"] == "m.example/library/web:1"
    assert [one["key"] for one in lower["spec"]["tolerations"]] == ["gpu", "spot"]


def test_an_overridden_pod_needs_no_patch():
    """The upper value and the overridden value do not alternate, also in the form that the API server stores."""
    pod = upper_pod()
    now = options(MIRROR, SPOT)
    lower = created(pod, now)
    lower["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500m"
    assert update.pod_patch(lower, created(pod, now), pod, now) == update.PodChanges()
    assert follow(lower, pod, now) == (update.PodChanges(), [])


@pytest.mark.parametrize("later", [(), (SPOT,), (MIRROR, SPOT)])
def test_a_changed_override_alone_does_not_change_the_spec_of_a_running_pod(later):
    """Labels and annotations follow it; the record of overrides stays that of the spec."""
    pod = upper_pod()
    lower = created(pod, options(MIRROR))
    changes, _ = follow(lower, pod, options(*later))
    main = changes.metadata_and_spec or {}
    assert "spec" not in main
    assert changes.resize is None
    annotations = (main.get("metadata") or {}).get("annotations") or {}
    assert names.ANNOTATION_OVERRIDES not in annotations
    assert annotations.get("iam.amazonaws.com/role") == ("reader" if SPOT in later else None)


def test_an_image_update_passes_through_the_override():
    """And tolerations that the user adds are added."""
    now = options(MIRROR, SPOT)
    lower = created(upper_pod(), now)
    pod = with_image("web:2")
    pod["spec"]["tolerations"].append({"key": "more", "operator": "Exists"})
    changes, refused = follow(lower, pod, now)
    assert not refused
    main = changes.metadata_and_spec
    assert main is not None
    assert main["spec"]["containers"] == [{"name": "main", "image": "m.example/library/web:2"}]
    assert [one["key"] for one in main["spec"]["tolerations"]] == ["gpu", "spot", "more"]
    assert changes.resize is None


def test_a_fixed_image_hides_updates():
    """The request is recorded, so that it is not compared again."""
    now = options(
        {"name": "fixed", "patch": {"spec": {"containers": [{"name": "*", "image": "m.example/x:1"}]}}}
    )
    lower = created(upper_pod(), now)
    pod = with_image("web:2")
    changes, _ = follow(lower, pod, now)
    main = changes.metadata_and_spec
    assert main is not None
    assert main.keys() == {"metadata"}
    lower["metadata"]["annotations"] |= main["metadata"]["annotations"]
    assert follow(lower, pod, now) == (update.PodChanges(), [])


def test_the_policy_judges_what_the_user_requests():
    """The operator's registry and annotations need no rule, and an override does not hide a forbidden image."""
    now = options(MIRROR, SPOT)
    lower = created(upper_pod(), now)
    assert follow(lower, with_image("web:2"), now)[1] == []
    changes, refused = follow(lower, with_image("evil:2"), now)
    assert refused == ["spec.containers[main].image"]
    assert "spec" not in (changes.metadata_and_spec or {})
    debugging = [{"name": "good", "image": "tools"}, {"name": "bad", "image": "evil"}]
    changes, refused = follow(lower, upper_pod(ephemeralContainers=debugging), now)
    assert refused == ["spec.ephemeralContainers[bad].image"]
    assert changes.ephemeral_containers == {
        "spec": {"ephemeralContainers": [{"name": "good", "image": "m.example/library/tools"}]}
    }


def test_a_forbidden_annotation_of_the_user_is_refused_beside_an_override():
    """The annotation that the override sets keeps the override's value."""
    now = options(SPOT)
    lower = created(upper_pod(), now)
    pod = copy.deepcopy(upper_pod())
    pod["metadata"]["annotations"] |= {
        "iam.amazonaws.com/role": "admin",
        "iam.amazonaws.com/other": "admin",
        "b": "c",
    }
    changes, refused = follow(lower, pod, now)
    assert sorted(refused) == [f"metadata.annotations[iam.amazonaws.com/{key}]" for key in ("other", "role")]
    main = changes.metadata_and_spec
    assert main is not None
    sent = {
        key: value for key, value in main["metadata"]["annotations"].items() if not names.is_reserved(key)
    }
    assert sent == {"b": "c"}


@pytest.mark.parametrize("seed", range(200))
def test_no_pod_loses_its_identity(seed):
    """With any fields in the user's pod, the lower pod keeps name, namespace and ownership, and a second pass changes nothing."""
    pod = generate(Random(seed))
    pod["metadata"] |= {"namespace": "shop", "uid": f"u-{seed}"}
    pod["spec"]["nodeName"] = "vn"
    now, before = options(MIRROR, SPOT), copy.deepcopy(pod)
    requested = lower_pod.lower_pod(pod, now)
    lower = lower_pod.overridden(requested, pod, now)
    assert pod == before
    assert lower == created(pod, now)
    for field in ("name", "namespace"):
        assert lower["metadata"][field] == requested["metadata"][field]
    assert requested["metadata"]["labels"].items() <= lower["metadata"]["labels"].items()
    proof = names.ANNOTATION_MADE_FOR
    assert lower["metadata"]["annotations"][proof] == requested["metadata"]["annotations"][proof]
    assert lower["spec"].get("volumes") == requested["spec"].get("volumes")
    assert lower["spec"].get("serviceAccountName") == requested["spec"].get("serviceAccountName")
    assert follow(lower, pod, now)[0].metadata_and_spec is None


@pytest.mark.parametrize(
    ("field", "count"),
    [("containers", 4000), ("ephemeralContainers", 1000), ("tolerations", 8000), ("volumes", 4000)],
)
def test_pods_with_thousands_of_items_are_followed_quickly(field, count):
    """A user can write as many as fit into an object. The policy does not allow the mirror of each image."""
    image = {"image": {"reference": "docker.io/a/b:1"} if field == "volumes" else "docker.io/a/b:1"}
    named = [{"name": f"n{number}", **image} for number in range(count)]
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(count)]
    now, pod = options(MIRROR, SPOT), upper_pod()
    if field in {"containers", "ephemeralContainers"}:
        pod["spec"]["containers"] += named
    else:
        pod["spec"][field] = tolerations if field == "tolerations" else named
    lower = created(pod, now)
    later = copy.deepcopy(pod)
    later["spec"]["containers"][0]["image"] = "docker.io/web:2"
    if field == "ephemeralContainers":  # which are added to an existing pod
        later["spec"][field] = [{**one, "name": f"debug-{one['name']}"} for one in named]
    before = time.process_time()
    changes, refused = follow(lower, later, now)
    assert time.process_time() - before < 1.5  # quadratic: 3 to 10 s
    assert not refused
    assert changes.metadata_and_spec
    assert len((changes.ephemeral_containers or {"spec": {field: []}})["spec"][field]) in {0, count}
