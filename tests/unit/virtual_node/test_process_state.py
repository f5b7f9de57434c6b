"""What a process reports about its lower clusters and its place among the replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clusterset.config import Cluster
from virtual_node.config.types import Config
from virtual_node.process_state import ProcessState


def test_clusters_of_profiles_do_not_make_the_process_unready():
    """Otherwise the author of a ClusterProfile could stop an upgrade of the virtual node."""
    silent: Any = SimpleNamespace(pods=None, waits_for="")
    state = ProcessState(
        Config(), clusters={"listed": silent, "profile-a": silent}, incorrect={"profile-b": "odd"}
    )
    assert state.trouble() == "profile-b cannot be used: odd"
    state.optional = frozenset({"profile-a", "profile-b"})
    assert state.trouble() == "not mirroring yet: listed"
    del state.clusters["listed"]
    assert state.trouble() == ""


def test_a_standby_is_ready_and_names_the_leader():
    """It mirrors nothing, but an upgrade must not wait for it."""
    elector: Any = SimpleNamespace(leader="vn-7_0b1c")
    silent: Any = SimpleNamespace(pods=None, waits_for="vn-b holds node vn-a")
    state = ProcessState(Config(), cluster_id="u", elector=elector, clusters={"a": silent})
    ready = state.checks()["clusters"]
    assert (ready(), state.leader()) == ("not mirroring yet: a (vn-b holds node vn-a)", "")
    state.is_standby = True
    assert (ready(), state.leader()) == (None, "vn-7")


def test_a_replica_with_shards_runs_only_the_clusters_that_it_holds():
    """The others are named with the replica that runs them."""
    clusters = [Cluster(name=name, kubeconfig="/x") for name in ("a", "b")]
    state = ProcessState(Config(clusters=clusters))
    assert state.configured == ["a", "b"]
    shards: Any = SimpleNamespace(held={"b": object()}, elsewhere=lambda: {"a": "vn-1"})
    state.shards = shards
    assert (state.configured, state.elsewhere()) == (["b"], {"a": "vn-1"})
