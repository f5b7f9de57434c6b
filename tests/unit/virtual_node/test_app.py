"""The process: its lower clusters, and its reaction to changed files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import prometheus_client
import pytest
from structlog.testing import capture_logs

from clusterset.config import Cluster
from controller_runtime.errors import ConfigError
from controller_runtime.util import rate_limiter
from tests.background import working
from tests.kubeconfigs import write_token
from virtual_node import app as module
from virtual_node.app import App
from virtual_node.config.types import Config, LeaderElectionConfig


class _Cluster:
    """A lower cluster that runs until cancelled, or fails at once."""

    started: ClassVar[list[weakref.ref[_Cluster]]] = []
    fails: ClassVar[bool] = False

    def __init__(self, config: Cluster, **_others: Any) -> None:
        self.config = config
        self.itself = self
        self.pods = None
        self.started.append(weakref.ref(self))

    async def run(self) -> None:
        if self.fails:
            raise ConfigError("odd")
        await asyncio.Event().wait()


class _Endpoints:
    """Records how long clusters keep serving while they are retired."""

    def __init__(self) -> None:
        self.lame_duck = 0.0
        self.kept: list[Cluster] = []

    def keep(self, clusters: list[Cluster]) -> None:
        self.kept = clusters

    def begin_work(self) -> None:
        self.lame_duck = 0.0

    def begin_shutdown(self, *, lame_duck: float) -> None:
        self.lame_duck = lame_duck


@pytest.fixture(autouse=True)
def _fake_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LowerCluster", _Cluster)
    monkeypatch.setattr(_Cluster, "started", [])


def _app(config: Config, file: str = "") -> App:
    options: Any = SimpleNamespace(config=config, config_file=file, warnings=[], startup_timeout=0)
    return App(options)


@contextlib.asynccontextmanager
async def _working(app: App, endpoints: Any) -> Any:
    async with working(app._work(endpoints)):
        await asyncio.sleep(0.01)
        yield


@pytest.mark.looptime
async def test_a_failed_cluster_is_freed_before_the_pause(monkeypatch: pytest.MonkeyPatch):
    """The pause before the next start may last a minute, and caches are large."""
    monkeypatch.setattr(_Cluster, "fails", True)
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]))
    async with _working(app, _Endpoints()):
        gc.collect()
        assert [cluster() for cluster in _Cluster.started] == [None]


class _Owner(_Cluster):
    """Mirrors once there is no error."""

    async def run(self) -> None:
        if self.fails:
            raise ExceptionGroup("tasks", [ConfigError("node worker: a real Node")])
        self.pods = object()  # type: ignore[assignment]
        self.nodes: dict[str, Any] = {}
        await asyncio.Event().wait()


@pytest.mark.looptime
async def test_an_error_that_only_the_user_can_correct_makes_the_replica_not_ready(
    monkeypatch: pytest.MonkeyPatch,
):
    """A real Node's name, or the upper cluster as the lower one: in readiness, event and report until it is corrected."""
    monkeypatch.setattr(module, "LowerCluster", _Owner)
    monkeypatch.setattr(_Cluster, "fails", True)
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]))
    app.state.cluster_id = "u"
    ready = app.state.checks()["clusters"]
    with capture_logs():
        async with _working(app, _Endpoints()):
            await asyncio.sleep(300)
            assert ready() == "a cannot be used: node worker: a real Node"
            assert app._file._trouble() == "lower cluster a cannot be used: node worker: a real Node"
            assert app.state.failed == {"a": "node worker: a real Node"}
            monkeypatch.setattr(_Cluster, "fails", False)
            await asyncio.sleep(90)
            assert (ready(), app._file._trouble(), app.state.failed) == (None, "", {})


@pytest.mark.looptime
async def test_a_replica_that_leads_again_releases_ports_at_once():
    """It lost the Lease before, and continued to serve streams; now a restarted cluster needs its port."""
    app = _app(Config(leader_election=LeaderElectionConfig(enabled=True)))
    endpoints = _Endpoints()
    for _ in range(2):
        async with _working(app, endpoints):
            assert endpoints.lame_duck == 0.0
        assert endpoints.lame_duck > 0


@pytest.mark.looptime(noop_cycles=5)
async def test_a_cluster_is_restarted_after_any_number_of_failures(monkeypatch: pytest.MonkeyPatch):
    """A kubeconfig may be invalid for a week."""
    monkeypatch.setattr(_Cluster, "fails", True)
    monkeypatch.setattr(rate_limiter.Restarts, "MAXIMUM", 1.0)
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]))
    with capture_logs():
        async with _working(app, _Endpoints()):
            await asyncio.sleep(1500)
            assert len(_Cluster.started) > 1100
            monkeypatch.setattr(_Cluster, "fails", False)
            await asyncio.sleep(10)
            assert "a" in app.state.clusters


def _shown(metric: str, **labels: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(metric, labels)


@pytest.mark.looptime
async def test_a_cluster_that_cannot_be_started_is_shown_as_down(monkeypatch: pytest.MonkeyPatch):
    """For example because of its kubeconfig; a removed or a running one is not shown."""
    monkeypatch.setattr(_Cluster, "fails", True)
    app = _app(Config(clusters=[Cluster(name="unusable", kubeconfig="/nowhere")]))
    with capture_logs():
        async with _working(app, _Endpoints()):
            await asyncio.sleep(300)
            assert _shown("virtual_node_cluster_up", cluster="unusable") == 0
    assert _shown("virtual_node_cluster_up", cluster="unusable") is None


@pytest.mark.looptime
async def test_counters_of_a_cluster_begin_at_zero():
    """The first pod that is lost or refused shows as an increase."""
    app = _app(Config(clusters=[Cluster(name="fresh", kubeconfig="/nowhere")]))
    async with _working(app, _Endpoints()):
        assert _shown("virtual_node_pods_lost_total", cluster="fresh") == 0
        assert _shown("virtual_node_pods_refused_total", cluster="fresh", reason="ExceededQuota") == 0


@pytest.mark.looptime
async def test_a_bad_kubeconfig_stops_no_cluster(tmp_path: Path):
    """The running one continues, the reason is logged once, and a later valid file is used; other clusters are not affected."""
    files = {name: tmp_path / name for name in ("a", "b")}
    for file in files.values():
        write_token(file, "first")
    app = _app(Config(clusters=[Cluster(name=name, kubeconfig=str(file)) for name, file in files.items()]))
    async with _working(app, _Endpoints()):
        await asyncio.sleep(1)
        with capture_logs() as logs:
            files["a"].write_text("clusters: [", encoding="utf-8")
            await asyncio.sleep(10)
        assert len(_Cluster.started) == 2
        assert [entry["cluster"] for entry in logs if entry["log_level"] == "error"] == ["a"]
        write_token(files["a"], "second-one")
        await asyncio.sleep(10)
        assert [found.config.name for made in _Cluster.started[2:] if (found := made())] == ["a"]
        assert sorted(app.state.clusters) == ["a", "b"]


@pytest.mark.looptime
@pytest.mark.parametrize("path", ["~no-such-user/kubeconfig", '"a\\0b"'])
async def test_nothing_in_a_configuration_ends_the_process(tmp_path: Path, path: str):
    """Such as invalid paths; the other clusters continue."""
    kubeconfig = tmp_path / "a"
    write_token(kubeconfig, "first")
    file = tmp_path / "config.yaml"
    file.write_text("{}", encoding="utf-8")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig=str(kubeconfig))]), str(file))
    async with _working(app, _Endpoints()):
        file.write_text(
            f"""
            apiVersion: virtual-node.io/v1alpha1
            kind: VirtualNodeConfiguration
            clusters: [{{name: a, kubeconfig: {kubeconfig}}}, {{name: b, kubeconfig: {path}}}]
            """,
            encoding="utf-8",
        )
        await asyncio.sleep(10)
        assert "a" in app.state.clusters
        file.write_text(
            f"""
            apiVersion: virtual-node.io/v1alpha1
            kind: VirtualNodeConfiguration
            clusters: [{{name: a, kubeconfig: {kubeconfig}}}, {{name: c, kubeconfig: {kubeconfig}}}]
            """,
            encoding="utf-8",
        )
        await asyncio.sleep(10)
        assert sorted(app.state.clusters) == ["a", "c"]


@pytest.mark.looptime
async def test_settings_of_other_programs_in_the_file_restart_no_cluster(tmp_path: Path):
    kubeconfig, file = tmp_path / "a", tmp_path / "config.yaml"
    write_token(kubeconfig, "first")
    text = "{{kind: ClusterSetConfiguration, clusters: [{{name: a, kubeconfig: {path}{more}}}], agents: [{{name: {agent}}}]}}"
    file.write_text(text.format(path=kubeconfig, more="", agent="fit"), encoding="utf-8")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig=str(kubeconfig))]), str(file))
    async with _working(app, _Endpoints()):
        await asyncio.sleep(10)
        with capture_logs() as logs:
            changed = text.format(path=kubeconfig, more=", usage: {source: Summary}", agent="load")
            file.write_text(changed, encoding="utf-8")
            await asyncio.sleep(10)
    assert [entry["changed"] for entry in logs if entry["event"] == "configuration applied"] == [[]]
    assert [entry for entry in logs if entry["log_level"] != "info"] == []
    assert len(_Cluster.started) == 1


@pytest.mark.looptime
async def test_a_kubeconfig_rotated_on_standby_restarts_no_cluster(tmp_path: Path):
    """A replica that starts to lead reads every kubeconfig anyway."""
    file = tmp_path / "a"
    write_token(file, "first")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig=str(file))]))
    write_token(file, "second-one")
    async with _working(app, _Endpoints()):
        await asyncio.sleep(10)
        assert len(_Cluster.started) == 1


_FILE = """
apiVersion: virtual-node.io/v1alpha1
kind: VirtualNodeConfiguration
clusters: [{{name: a, kubeconfig: /nowhere, {more}: {{zone: b}}}}]
"""


@pytest.mark.looptime
@pytest.mark.parametrize("is_standby", [False, True])
async def test_every_replica_reports_a_configuration_that_is_not_applied(tmp_path: Path, *, is_standby: bool):
    """Also on standby, and a leader that continues with the previous content."""
    file = tmp_path / "config.yaml"
    file.write_text(_FILE.format(more="labels"), encoding="utf-8")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]), str(file))
    app.state.is_standby = is_standby
    endpoints: Any = _Endpoints()
    work = app._follow_config_standing_by(endpoints) if is_standby else app._work(endpoints)
    async with working(work):
        await asyncio.sleep(3)
        assert _shown("virtual_node_config_rejected") == 0
        with capture_logs() as logs:
            file.write_text(_FILE.format(more="lables"), encoding="utf-8")
            await asyncio.sleep(30)
        assert [entry["event"] for entry in logs] == ["configuration not applied"]
        assert _shown("virtual_node_config_rejected") == 1
        file.write_text(_FILE.format(more="labels"), encoding="utf-8")
        await asyncio.sleep(3)
        assert _shown("virtual_node_config_rejected") == 0


@pytest.mark.looptime
async def test_a_standby_leads_with_the_last_valid_configuration(tmp_path: Path):
    """The file was changed on standby, and is invalid when it starts to lead."""
    file = tmp_path / "config.yaml"
    file.write_text(_FILE.format(more="nodeSelector"), encoding="utf-8")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]), str(file))
    app.state.is_standby = True
    endpoints: Any = _Endpoints()
    with capture_logs():
        async with working(app._follow_config_standing_by(endpoints)):
            for field in ("labels", "lables"):
                file.write_text(_FILE.format(more=field), encoding="utf-8")
                await asyncio.sleep(5)
        async with _working(app, _Endpoints()):
            (cluster,) = _Cluster.started
            assert cluster().config.labels == {"zone": "b"}  # type: ignore[union-attr]


@pytest.mark.looptime
async def test_a_change_is_kept_by_a_replica_that_loses_its_lease_while_applying_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its clusters take time to stop; when it leads again, the change is not reported again."""

    async def run(_self: _Cluster) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)

    monkeypatch.setattr(_Cluster, "run", run)
    file = tmp_path / "config.yaml"
    file.write_text(_FILE.format(more="nodeSelector"), encoding="utf-8")
    app = _app(Config(clusters=[Cluster(name="a", kubeconfig="/nowhere")]), str(file))
    endpoints: Any = _Endpoints()
    async with working(app._follow_config_standing_by(endpoints)):
        async with _working(app, endpoints):
            file.write_text(_FILE.format(more="labels"), encoding="utf-8")
            await asyncio.sleep(3)  # the cluster is stopping
        # The streams of clusters that other replicas run also follow the change.
        await asyncio.sleep(3)
        assert [cluster.labels for cluster in endpoints.kept] == [{"zone": "b"}]
    _Cluster.started.clear()
    async with _working(app, _Endpoints()):
        (cluster,) = _Cluster.started
        assert cluster().config.labels == {"zone": "b"}  # type: ignore[union-attr]
