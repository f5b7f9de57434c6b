"""The changes of lower clusters and of their kubeconfigs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from clusterset import following
from clusterset.config import Cluster
from clusterset.following import Change, Kubeconfigs, changes
from tests.kubeconfigs import write_token


def _clusters(*names: str, server: str = "") -> list[Cluster]:
    return [Cluster(name=name, kubeconfig=name, server=server) for name in names]


def test_changes_name_added_changed_and_removed_clusters():
    """A rotated kubeconfig is a change of a cluster that stays."""
    before = _clusters("gone", "same", "rotated", "other")
    after = [*_clusters("rotated", "new", "same"), *_clusters("other", server="https://b")]
    found = changes(before, after, {"rotated", "gone", "new"})
    assert found == Change(added=["new"], changed=["other", "rotated"], removed=["gone"])


@pytest.mark.looptime
async def test_a_kubeconfig_that_cannot_be_used_replaces_none_and_is_loaded_again(tmp_path: Path):
    """After a minute, or when its content changes. Its error is logged once."""
    file = tmp_path / "a"
    clusters = [Cluster(name="a", kubeconfig=str(file))]
    write_token(file, "first")
    kubeconfigs = Kubeconfigs((), component="program", loads_new=True)

    async def polled(seconds: float) -> set[str]:
        found = set[str]()
        for _ in range(int(seconds / 2)):
            found |= kubeconfigs.poll(clusters)
            await asyncio.sleep(2)
        return found | kubeconfigs.poll(clusters)

    assert await polled(4) == {"a"}
    first = kubeconfigs.loaded["a"]
    with capture_logs() as logs:
        file.write_text("clusters: [", encoding="utf-8")
        assert await polled(300) == set()
    assert [entry["event"] for entry in logs] == ["kubeconfig not applied"]
    assert (kubeconfigs.loaded["a"], list(kubeconfigs.refused)) == (first, ["a"])
    write_token(file, "second-one")
    assert await polled(4) == {"a"}
    assert kubeconfigs.loaded["a"] is not first
    assert kubeconfigs.refused == {}
    kubeconfigs.poll([])
    assert kubeconfigs.loaded == {}


@pytest.mark.looptime
async def test_few_kubeconfigs_are_loaded_at_once_and_none_after_the_end(monkeypatch: pytest.MonkeyPatch):
    """Users who are not administrators can add many, each with a credential plugin."""
    running = most = 0

    async def connection(_cluster: Cluster) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(10)
        finally:
            running -= 1

    monkeypatch.setattr(following, "connection", connection)
    kubeconfigs = Kubeconfigs((), component="program", loads_new=True)
    kubeconfigs.poll(_clusters(*map(str, range(100))))
    await asyncio.sleep(25)
    assert (most, kubeconfigs.is_loading) == (8, True)
    await kubeconfigs.close()
    assert (running, kubeconfigs.is_loading) == (0, False)


async def test_kubeconfigs_of_new_clusters_are_left_to_the_caller(tmp_path: Path):
    """The caller reads the file when it starts the cluster; only later changes are reported."""
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        write_token(file, "first")
    clusters = [Cluster(name=file.name, kubeconfig=str(file)) for file in files]
    kubeconfigs = Kubeconfigs(clusters[:1], component="program")
    kubeconfigs.poll(clusters)
    assert not kubeconfigs.is_loading
    write_token(files[1], "second-one")
    kubeconfigs.poll(clusters)
    await asyncio.sleep(0.2)
    assert kubeconfigs.poll(clusters) == {"b"}
