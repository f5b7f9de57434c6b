"""Users of certificates, and attributes of access reviews: no network."""

from __future__ import annotations

import json

import pytest

from virtual_node.kubelet.auth import (
    Attributes,
    UserInfo,
    request_attributes,
    subject_access_review,
    user_from_certificate,
)


def test_a_certificate_without_a_name_has_no_user() -> None:
    """As the apiserver's common-name conversion."""
    assert user_from_certificate({}) is None
    subject = ((("organizationName", "system:masters"),),)
    assert user_from_certificate({"subject": subject}) is None


def test_the_last_of_several_names_counts() -> None:
    """As in Go, or a certificate would be another user's here than in the apiserver."""
    subject = ((("commonName", "admin"),), (("organizationName", "dev"),), (("commonName", "alice"),))
    user = user_from_certificate({"subject": subject})
    assert user is not None
    assert (user.name, user.groups) == ("alice", ("dev", "system:authenticated"))


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/pods", [("get", "pods"), ("get", "proxy")]),
        ("GET", "/runningpods/", [("get", "pods"), ("get", "proxy")]),
        ("GET", "/healthz", [("get", "healthz"), ("get", "proxy")]),
        ("GET", "/configz", [("get", "configz"), ("get", "proxy")]),
        ("GET", "/statusz", [("get", "statusz")]),
        ("GET", "/flagz", [("get", "configz")]),
        ("GET", "/stats/summary", [("get", "stats")]),
        ("GET", "/metrics/resource", [("get", "metrics")]),
        ("GET", "/logs/syslog", [("get", "log")]),
        ("GET", "/containerLogs/{namespace}/{pod}/{container}", [("get", "proxy")]),
        ("POST", "/exec/{namespace}/{pod}/{container}", [("create", "proxy")]),
        ("GET", "/attach/{namespace}/{pod}/{container}", [("create", "proxy")]),
        ("GET", "/portForward/{namespace}/{pod}", [("create", "proxy")]),
        ("POST", "/run/{namespace}/{pod}/{container}", [("create", "proxy")]),
        ("DELETE", "/podsecrets", [("delete", "proxy")]),
        ("PUT", "/", [("update", "proxy")]),
        ("PATCH", "//pods", [("patch", "pods"), ("patch", "proxy")]),
        ("BREW", "/x", [("brew", "proxy")]),
    ],
)
def test_attributes_of_a_request(method: str, path: str, expected: list[tuple[str, str]]) -> None:
    """Verb by method, subresource by the route's first part."""
    assert [(a.verb, a.subresource) for a in request_attributes(method, path)] == expected


def test_a_review_is_plain_json() -> None:
    """With only fields of the apiserver's schema."""
    user = UserInfo("alice", groups=("a",), extra=(("k", ("v",)),))
    review = subject_access_review(user, Attributes("get", "proxy"), node_name="n")
    assert review["apiVersion"] == "authorization.k8s.io/v1"
    assert json.loads(json.dumps(review)) == review
