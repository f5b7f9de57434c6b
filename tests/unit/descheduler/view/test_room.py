"""Room on virtual nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from descheduler.view.room import Usage

ALLOCATABLE = {"cpu": 4000, "memory": 8, "pods": 10}


@pytest.mark.parametrize(
    ("used", "requests", "lacking"),
    [
        ({}, {"cpu": 4000, "memory": 8, "pods": 1}, []),
        ({"cpu": 1}, {"cpu": 4000, "memory": 9, "pods": 1}, ["cpu", "memory"]),
        ({"pods": 10}, {"pods": 1}, ["pods"]),
        ({}, {"gpu": 1}, ["gpu"]),
        ({"cpu": 9000}, {"cpu": 0, "pods": 1}, []),  # as in kube-scheduler
    ],
)
def test_lacking_names_resources_without_room(
    used: dict[str, int], requests: dict[str, int], lacking: list[str]
):
    assert Usage("b", ALLOCATABLE, Counter(used)).lacking(requests) == lacking
