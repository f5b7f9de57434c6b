"""Rewrites of image names: a prefix ends at a boundary of the full name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.overrides import ImageRewrite, rewritten

DIGEST = "sha256:" + "0" * 64
HUB = ("docker.io/", "mirror.example/")


@pytest.mark.parametrize(
    ("image", "rewrites", "result"),
    [
        ("nginx", [HUB], "mirror.example/library/nginx"),
        ("nginx:1.29", [HUB], "mirror.example/library/nginx:1.29"),
        (f"team/app@{DIGEST}", [HUB], f"mirror.example/team/app@{DIGEST}"),
        ("index.docker.io/team/app:1", [HUB], "mirror.example/team/app:1"),
        ("docker.io/nginx", [HUB], "mirror.example/library/nginx"),
        ("quay.io/team/app", [HUB], "quay.io/team/app"),
        ("docker.io.evil.example/app", [HUB], "docker.io.evil.example/app"),
        ("nginx", [("docker.io", "mirror.example/hub")], "mirror.example/hub/library/nginx"),
        ("nginx:1", [("docker.io/library/nginx", "mirror.example/web")], "mirror.example/web:1"),
        ("nginx", [("docker.io/library/nginx", "mirror.example/web")], "mirror.example/web"),
        (f"nginx@{DIGEST}", [("docker.io/library/nginx", "m.example/web")], f"m.example/web@{DIGEST}"),
        ("nginx-exporter:1", [("docker.io/library/nginx", "mirror.example/web")], "nginx-exporter:1"),
        ("quay.io/team/app:1", [("quay.io/te", "mirror.example/te")], "quay.io/team/app:1"),
        ("localhost:5000/app", [("localhost:5000/", "mirror.example/")], "mirror.example/app"),
        ("Quay.IO:443/app:1", [("quay.io/", "mirror.example/")], "mirror.example/app:1"),
        ("nginx", [("docker.io/library/", "a.example/"), HUB], "a.example/nginx"),
        ("team/app", [("docker.io/library/", "a.example/"), HUB], "mirror.example/team/app"),
        ("nginx", [], "nginx"),
        ("", [HUB], ""),
        ("x" * 5000, [HUB], "x" * 5000),
    ],
)
def test_the_first_prefix_that_ends_at_a_boundary_is_replaced(image, rewrites, result):
    """A rewrite keeps tag and digest, and an image that no rewrite matches keeps its spelling."""
    assert rewritten(image, [ImageRewrite(source=source, to=to) for source, to in rewrites]) == result


@given(
    st.text(), st.sampled_from([HUB, ("docker.io/library/nginx", "m.example/web"), ("quay.io", "m.example")])
)
def test_no_image_fails(image, rewrite):
    """Whatever a tenant writes, the result is the image, or begins with the target."""
    result = rewritten(image, [ImageRewrite(source=rewrite[0], to=rewrite[1])])
    assert result == image or result.startswith(rewrite[1])
