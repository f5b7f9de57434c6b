"""Helm: a release with hooks that is installed, tested, upgraded, rolled back after a failure, and uninstalled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hack.sandbox.command import Completed, command
from tests.company.place import Place
from tests.company.software import Observations, Software

_CHART = Path(__file__).parents[1] / "charts" / "web"
_WAIT = ("--wait", "--timeout=150s")


async def _run(place: Place) -> Observations:
    values = f"--set-json=scheduling={json.dumps(place.scheduling)}"

    async def helm(*arguments: str | Path, check: bool = True) -> Completed:
        argv = [place.tools.binaries["helm"], *arguments, "--namespace", place.namespace]
        argv += ["--kubeconfig", place.cluster.kubeconfig]
        return await command(argv, check=check, timeout=300)

    async def pages() -> list[str]:
        """Return the pages of the Deployment's pods."""
        return sorted(pod["metadata"]["annotations"]["page"] for pod in await place.pods("app=web"))

    async def tested() -> str:
        """Return the last line of the test pod's log."""
        return (await helm("test", "web", "--logs", "--timeout=150s")).stdout.strip().splitlines()[-1]

    seen: dict[str, Any] = {}
    await helm("install", "web", _CHART, values, "--wait-for-jobs", *_WAIT)
    seen["ready after the installation"] = await pages()
    seen["page by the test"] = await tested()
    await helm("upgrade", "web", _CHART, values, "--set=page=second", *_WAIT)
    await place.becomes(pages, ["second", "second"], "only pods of the upgrade are left")
    seen["page by the test after the upgrade"] = await tested()
    broken = ("--set=page=third", "--set=image=company.example/missing:1", "--timeout=20s")
    failed = await helm("upgrade", "web", _CHART, values, *broken, "--wait", "--atomic", check=False)
    seen["a failed upgrade ends with an error"] = failed.returncode != 0
    await place.becomes(pages, ["second", "second"], "the failed upgrade is rolled back")
    history = json.loads((await helm("history", "web", "--output=json")).stdout)
    seen["revisions"] = [one["status"] for one in history]
    await helm("uninstall", "web", *_WAIT)
    await place.becomes(pages, [], "no pod is left")
    assert seen["page by the test"] == "first", seen
    assert seen["page by the test after the upgrade"] == "second", seen
    assert seen["a failed upgrade ends with an error"], failed
    return seen


SOFTWARE = Software(
    name="helm",
    job="a release with hooks: `--wait`, `helm test`, an upgrade, a failed upgrade with `--atomic`, and `helm uninstall`",
    run=_run,
    programs=("helm",),
)
