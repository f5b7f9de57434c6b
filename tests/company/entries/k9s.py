"""k9s: what its screen shows of a pod, with the log, a shell and the description, and a deletion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hack.sandbox.builds import binaries
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.company.terminal import Terminal
from tests.workloads import manifest

_ROW = r"\bcompany +(?:● +)?(\d/\d +\w+ +\d+)\b"


async def _run(place: Place) -> Observations:
    await place.apply(_pod(place))
    terminal = await _started(place)
    await terminal.shows(r"\bcompany .*Running", "the running pod")
    seen: dict[str, Any] = {"READY, STATUS, RESTARTS": (await terminal.shows(_ROW, "its row")).split()}
    await terminal.press("l")
    seen["log"] = await terminal.shows(r"line 3", "the log")
    await terminal.press("Escape")
    await terminal.shows(_ROW, "the list after the log")
    await terminal.press("s")
    await terminal.shows(r"/ # *$", "a shell of the container")
    await terminal.press("echo got $((6*7))", "Enter")
    seen["shell"] = await terminal.shows(r"^got \d+", "the answer of the shell")
    await terminal.press("exit", "Enter")
    await terminal.shows(_ROW, "the list after the shell")
    await terminal.press("d")
    seen["node of the description"] = place.node in await terminal.shows(r"Node: .*", "the description")
    await terminal.press("Escape")
    await terminal.shows(_ROW, "the list after the description")
    await terminal.press("C-d")
    await terminal.shows("Delete", "the question")
    await terminal.press("Tab", "Enter")

    async def pods() -> int:
        return len(await place.pods())

    await place.becomes(pods, 0, "k9s deletes the pod")
    assert seen["shell"] == "got 42", seen
    assert seen["node of the description"], seen
    return seen


async def _started(place: Place) -> Terminal:
    terminal = Terminal(place.sandbox.directory / f"{place.namespace}-{place.cluster.name}.tmux")
    place.stack.push_async_callback(terminal.stop)
    kubectl = (await binaries.ensure(["kubectl"]))["kubectl"]
    home = place.sandbox.directory / f"{place.namespace}-{place.cluster.name}"
    argv: list[str | Path] = [place.tools.binaries["k9s"], "--kubeconfig", place.cluster.kubeconfig]
    argv += ["--namespace", place.namespace, "--command", "pods", "--headless"]
    environment: dict[str, str | Path] = {
        "K9S_CONFIG_DIR": home,
        "PATH": f"{kubectl.parent}:{os.environ['PATH']}",
    }
    await terminal.start(argv, environment)
    return terminal


def _pod(place: Place) -> dict[str, Any]:
    script = "for i in 1 2 3; do echo line $i; done; exec sleep 36000"
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    metadata = {"namespace": place.namespace}
    return manifest("Pod", "company", metadata=metadata, spec=place.pod_spec(container))


SOFTWARE = Software(
    name="k9s",
    job="the list of pods, and of a pod the log, a shell, the description and its deletion, by keys and the screen's text",
    run=_run,
    programs=("k9s",),
)
