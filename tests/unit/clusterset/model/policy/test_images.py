"""Images by pattern: one image has one name, however a user writes it."""

from __future__ import annotations

import pytest

from clusterset.model.policy.config import ImageRules
from clusterset.model.policy.rules import full_name
from tests.unit.clusterset.model.policy.pods import broken, container, judge, pod

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.27", "docker.io/library/nginx:1.27"),
        (f"nginx@{DIGEST}", f"docker.io/library/nginx@{DIGEST}"),
        (f"nginx:1@{DIGEST}", f"docker.io/library/nginx:1@{DIGEST}"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("index.docker.io/team/app:1", "docker.io/team/app:1"),
        ("registry.example.com/app", "registry.example.com/app:latest"),
        ("registry.example.com:5000/a/b:1", "registry.example.com:5000/a/b:1"),
        ("registry.example.com:443/app:1", "registry.example.com/app:1"),
        ("Registry.Example.COM/app:1", "registry.example.com/app:1"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
        ("EVIL/app:1", "evil/app:1"),
    ],
)
def test_the_full_name_is_that_of_a_container_runtime(image, name):
    """So that no spelling evades a pattern."""
    assert full_name(image) == name


def _judged(image: str, allow: list[str], deny: list[str]) -> bool:
    body = pod(containers=[{**container(), "image": image}])
    return not judge(body, images=ImageRules(allow=allow, deny=deny))


@pytest.mark.parametrize(
    ("image", "allow", "deny", "allowed"),
    [
        ("nginx", ["*"], [], True),
        ("registry.example.com/team/app:1", ["registry.example.com/*"], [], True),
        ("registry.example.com.evil.org/app:1", ["registry.example.com/*"], [], False),
        ("nginx", ["registry.example.com/*"], [], False),
        ("nginx:1.27", ["docker.io/library/nginx:*"], [], True),
        ("index.docker.io/library/nginx", ["*"], ["docker.io/*"], False),
        ("evil.org:443/x", ["*"], ["evil.org/*"], False),
        ("registry.example.com/app:latest", ["registry.example.com/*"], ["*:latest"], False),
        ("registry.example.com/app", ["registry.example.com/*"], ["*:latest"], False),
        ("", ["registry.example.com/*"], [], False),
    ],
)
def test_an_image_must_match_an_allowed_pattern_and_no_forbidden_one(image, allow, deny, allowed):
    """Patterns see the full name."""
    assert _judged(image, allow, deny) is allowed


def test_init_and_debug_containers_and_image_volumes_are_checked():
    """Every way to run or mount an image."""
    body = pod(
        initContainers=[{**container(), "name": "init"}],
        ephemeralContainers=[{**container(), "name": "debug"}],
        volumes=[{"name": "data", "image": {"reference": "evil.org/x"}}, {"name": "tmp", "emptyDir": {}}],
    )
    assert broken(body, images=ImageRules(allow=[])) == [
        ("images", "spec.initContainers[init].image"),
        ("images", "spec.containers[app].image"),
        ("images", "spec.ephemeralContainers[debug].image"),
        ("images", "spec.volumes[data].image.reference"),
    ]
    (violation,) = judge(pod(), images=ImageRules(allow=["a.example/*"], deny=["*:latest"]))
    assert str(violation).endswith(
        "is web:1, allowed: a.example/* (set by clusters[edge].policy.images.allow)"
    )
    (violation,) = judge(pod(), images=ImageRules(deny=["*:latest", "*/library/*"]))
    assert str(violation).endswith(
        "is web:1, denied by pattern */library/* (set by clusters[edge].policy.images.deny)"
    )
