"""All tools judge by one rule whether the holder of a Lease is alive."""

from __future__ import annotations

import pytest

from tests.unit.virtual_node.examine.health_objects import NOW, lease
from virtual_node.examine.leases import lease_age


@pytest.mark.parametrize(
    ("age", "is_expired", "is_long_gone"), [(40, False, False), (41, True, False), (81, True, True)]
)
def test_a_lease_expires_after_its_own_duration(age: float, *, is_expired: bool, is_long_gone: bool):
    found = lease_age(lease(age), NOW)

    assert found is not None
    assert (found.is_expired(), found.is_expired(2)) == (is_expired, is_long_gone)
    assert str(found) == f"was last renewed {age} s ago (it lasts 40 s)"


def test_a_lease_without_a_duration_lasts_as_long_as_the_caller_says():
    bare = {"spec": {"renewTime": lease(20)["spec"]["renewTime"]}}

    found = lease_age(bare, NOW, duration=15)

    assert found is not None
    assert (found.holder, found.is_expired()) == ("", True)


@pytest.mark.parametrize("found", [None, {}, {"spec": {"holderIdentity": "vn"}}])
def test_a_lease_that_was_never_renewed_has_no_age(found: dict[str, object] | None):
    assert lease_age(found, NOW) is None
