"""An extender with an unusable configuration waits, not ready, until it is usable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from clusterset import following
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError
from hack.sandbox.ports import free_ports
from multi_scheduler import config
from multi_scheduler.bound_pods import bound_pods
from multi_scheduler.program import PROGRAM, SchedulerSettings
from multi_scheduler.shared import Shared
from tests.background import working

HEAD = "{apiVersion: virtual-node.io/v1alpha1, kind: MultiSchedulerConfiguration, "
GOOD = HEAD + "clusters: [{name: a, kubeconfig: k}]}"


def _load(options: SchedulerSettings) -> None:
    """Create the agents, as the extender does at start."""
    upper: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    shared = Shared(options.config, upper, bound_pods(upper))
    for one in options.config.agents:
        shared.agent(one)


async def _readyz(port: int) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        return answer.status, await answer.text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            "clusters: [{name: a, kubeconfig: k, policy: {seccompProfiles: [None]}}]}",
            "policy.seccompProfiles",
        ),
        ("clusters: [{name: a, kubeconfig: k}], agents: [{name: fit, config: {scores: 1}}]}", "scores"),
        ("clusters: [{name: a, kubeconfig: k}], agents: [{name: fitt}]}", "'fitt' is not installed"),
    ],
)
async def test_waits_with_an_invalid_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str
):
    """Found by the parser, or only by an agent: alive, not ready, with one log line."""
    monkeypatch.setattr(following, "_POLL", 0.01)
    (port,), file = free_ports(1), tmp_path / "config.yaml"
    file.write_text(HEAD + wrong, encoding="utf-8")
    arguments = [f"--config={file}", f"--health-addr=127.0.0.1:{port}"]
    works = asyncio.Event()

    async def work(options: SchedulerSettings) -> None:
        _load(options)
        works.set()
        await asyncio.Event().wait()

    with capture_logs() as logs:
        options = PROGRAM.parse([*arguments, "--wait-for-config"])
        async with working(config.run(options, "p", work)) as task:
            await asyncio.sleep(0.2)
            assert not task.done()
            status, text = await _readyz(port)
            assert (status, "[-]configuration failed" in text) == (500, True)
            file.write_text(GOOD, encoding="utf-8")
            await asyncio.wait_for(works.wait(), 10)
            assert not task.done()
    (line,) = [entry for entry in logs if entry["event"] == "configuration not applied"]
    assert said in line["error"]
    file.write_text(HEAD + wrong, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        await config.run(PROGRAM.parse(arguments), "p", work)
