"""Packed objects are what was listed, take little memory, and do not change any finding."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random
from typing import Any

import msgspec

from controller_runtime.objects import Object, decode_object, from_dict
from tests.benchmarks.canned_pods import templates
from tests.thorough import seeds
from tests.unit.virtual_node.commands.healthy_clusters import bodies, copied, healthy, inspect, set_up
from tests.unit.virtual_node.commands.inspect.generated_clusters import generate
from virtual_node.examine.clusters import SETTINGS
from virtual_node.examine.facts import LEASES
from virtual_node.examine.packed import PackedObjects, Packer
from virtual_node.examine.snapshot import Snapshot, objects


def packed(bodies: list[dict[str, Any]]) -> PackedObjects:
    """Return the objects as one list packs them."""
    found = PackedObjects()
    found.extend(map(Packer(Object.to_json), map(from_dict, bodies)))
    return found


def pack(facts: Snapshot) -> Snapshot:
    """Pack all objects in place, as if they had been listed."""
    for cluster in facts.clusters:
        for listed in [*cluster._known]:
            if listed.kind and listed is not LEASES:
                cluster.put(listed, packed(cluster[listed]))
    return facts


def test_findings_are_those_about_plain_objects() -> None:
    """With all kinds of faults, and with malformed objects."""
    for seed in seeds(8, 300):
        assert inspect(pack(generate(Random(seed)))) == inspect(generate(Random(seed)))


def test_returns_the_listed_objects_in_order() -> None:
    """By iteration and by position; also objects that are not alike, and the heads alone."""
    plain = [*bodies(generate(Random(1), pods=60).upper, "Pod"), *bodies(healthy().upper, "Node")]
    found = packed(plain)
    expected = [from_dict(one).to_dict() for one in plain]
    assert [*found] == [found[place] for place in range(len(found))] == found[:] == expected
    assert [one["metadata"] for one in found.heads()] == [one["metadata"] for one in expected]
    assert {one["spec"].get("nodeName") for one in found.heads()} == {
        one["spec"].get("nodeName") for one in plain
    }


def test_similar_pods_take_a_tenth_of_their_size() -> None:
    """Pods of one workload follow each other in a list."""
    upper, _ = templates("vn-0")
    packer = Packer(Object.to_json)
    pods = [from_dict(msgspec.json.decode(upper.body(number))) for number in range(200)]
    blocks = {packer(pod).block for pod in pods}
    assert len(blocks) > 10
    assert sum(block.stored for block in blocks) < sum(len(pod.to_json()) for pod in pods) / 10


def test_objects_of_a_list_that_began_again_are_left_out() -> None:
    """A list whose pages expire is read again; objects of the first attempt are in the same blocks."""
    plain = bodies(generate(Random(1), pods=60).upper, "Pod")
    packer = Packer(Object.to_json)
    first = [packer(from_dict(one)) for one in plain[:5]]
    found = PackedObjects()
    found.extend([packer(from_dict(one)) for one in plain])
    assert first[0].block is found._packed[0].block
    assert [*found] == [from_dict(one).to_dict() for one in plain]
    assert found[-1] == [*found][-1]


def test_a_pod_that_cannot_be_decoded_concerns_only_its_cluster() -> None:
    """JSON is scanned when it is listed, and decoded when a rule reads it."""
    facts = healthy()
    bodies(facts.upper, "Pod")[0]["spec"]["containers"][0]["image"] = "web:2"
    rome = copied(facts.lowers[0], "rome")
    set_up(rome, nodes={"vn-rome": rome[SETTINGS].nodes["vn"]})
    above = copy.deepcopy(bodies(facts.upper, "Pod")[0])
    above["metadata"]["uid"], above["spec"]["nodeName"] = "u-rome", "vn-rome"
    bodies(facts.upper, "Pod").insert(0, above)
    (below,) = bodies(rome, "Pod")
    below["metadata"]["labels"]["virtual-node.io/upper-uid"] = "u-rome"
    for text in (b'{"a":1e999}', b"[]"):
        found = PackedObjects()
        body = msgspec.json.encode({**below, "spec": msgspec.Raw(text)})
        found.extend(map(Packer(Object.to_json), [decode_object(body)]))
        rome.put(objects("Pod"), found)
        rows = inspect(replace(facts, lowers=[rome, *facts.lowers]))
        assert [one.cluster for one in rows if one.check == "drift"] == ["paris"]
        failures = [one.message for one in rows if one.check == "rule"]
        assert failures
        assert all("findings about rome are missing" in one for one in failures)
