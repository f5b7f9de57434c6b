"""Shares, and the layout of k8s-swarm."""

from __future__ import annotations

import json

import pytest
import yaml

from swarm import share
from swarm.assignment import slices
from swarm.handover import Holder, Ledger, Slot

SETTINGS = share.Settings("s", "Exclusive", "Signal", weights={"b": 3})


def test_share_has_the_state_of_each_job():
    """Assigned and granted, assigned and waiting, revoked."""
    holder = Holder(pod="w-0", uid="u", session="x", version=7, start=["a", "d"], stop=["c"])
    record = Ledger(slots={"w-0": Slot(name="w-0", index=0, uid="u", jobs=["a", "b"])}, holders={"u": holder})
    (text,) = share.render(record.slots_by_uid().get(holder.uid), holder, SETTINGS)
    found = json.loads(text)
    assert [(job["name"], job["state"], job["weight"]) for job in found["jobs"]] == [
        ("a", "start", 1), ("b", "hold", 3), ("c", "stop", 1), ("d", "start", 1),
    ]  # fmt: skip
    assert (found["version"], found["session"], found["podUID"], found["parts"]) == (7, "x", "u", 1)
    assert share.render(record.slots_by_uid().get(holder.uid), holder, SETTINGS) == [text]


def test_a_large_share_is_split():
    """Each part fits into a ConfigMap and names version, session and pod."""
    jobs = [f"job-{index:04}-{'x' * 200}" for index in range(10_000)]
    holder = Holder(pod="w-0", uid="u", session="x", version=7, start=jobs)
    record = Ledger(slots={"w-0": Slot(name="w-0", index=0, uid="u", jobs=jobs)}, holders={"u": holder})
    texts = share.render(record.slots_by_uid().get(holder.uid), holder, SETTINGS)
    parts = [json.loads(text) for text in texts]
    assert len(parts) == 3 == parts[0]["parts"]
    assert max(map(len, texts)) <= share.LIMIT
    assert [job["name"] for part in parts for job in part["jobs"]] == jobs
    assert {(part["version"], part["session"], part["podUID"]) for part in parts} == {(7, "x", "u")}
    assert [part.get("part", 0) for part in parts] == [0, 1, 2]


def test_writes_the_layout_of_k8s_swarm():
    """The text equals that of its controller, with corrected slices."""
    jobs = ["stream:a", "stream:b:new", "x", "y", "z"]
    workers = {
        f"swarm-worker-{index}": Slot(name=f"swarm-worker-{index}", index=index, jobs=jobs[start:end])
        for index, (start, end) in enumerate(slices(5, 2))
    }
    assert share.original(Ledger(version=9, table=4, slots=workers)) == (
        "workloads:\n"
        "  swarm-worker-0:\n"
        "    jobs:\n"
        "      - stream:a\n"
        "      - stream:b:new\n"
        "      - x\n"
        "    version: 0\n"
        "  swarm-worker-1:\n"
        "    jobs:\n"
        '      - "y"\n'
        "      - z\n"
        "    version: 0\n"
        "version: 4\n"
    )
    assert share.original_version(share.original(Ledger(version=9, table=4, slots=workers))) == 4
    assert [share.original_version(text) for text in ("", "x", "version: y", "{")] == [0, 0, 0, 0]
    assert share.original(Ledger()) == "workloads: {}\nversion: 0\n"
    empty = Ledger(slots={"swarm-worker-0": Slot(name="swarm-worker-0", index=0)})
    assert "    jobs: []\n" in share.original(empty)


@pytest.mark.parametrize(
    "job", ["yes", "1", "1e3", "null", "", "a: b", "#x", "- x", "é", "'q'", "0o17", "2020-01-01"]
)
def test_names_round_trip_through_the_layout_of_k8s_swarm(job):
    """Names that YAML would read as another type are quoted."""
    record = Ledger(slots={"w-0": Slot(name="w-0", index=0, jobs=[job])})
    assert yaml.safe_load(share.original(record))["workloads"]["w-0"]["jobs"] == [job]
