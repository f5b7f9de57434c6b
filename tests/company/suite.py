"""Run entries on real clusters: directly in the lower cluster, and then through the virtual node."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from hack.sandbox import Sandbox, SandboxError
from hack.sandbox.attaching import attached
from hack.sandbox.builds import binaries
from hack.sandbox.builds.programs import Progress
from hack.sandbox.commands.demo import configuration
from tests.company import environment, modules
from tests.company.place import VIRTUAL_NODE, Place, Tools
from tests.company.software import Observations, Software
from tests.company.works_with import Row, difference
from tests.evidence import evidence
from tests.recipes import block
from tests.waiting import node_ready

_PRESETS = ("jobset", "kueue", "leaderworkerset")
"""Software that runs in both clusters here; see "Operators that run in both clusters" in docs/operate/other-programs.md."""

SIDES = {"direct": False, "virtual": True}
"""Argument of ``--only`` → whether pods run on the virtual node."""
FAILS_DIRECTLY = "fails directly"
_SYSTEM_NAMESPACES = ("jobset-system", "kueue-system", "lws-system")


async def run(
    chosen: Sequence[Software], progress: Progress, *, only: str | None = None
) -> AsyncIterator[Row]:
    """Run entries one after the other on the same clusters, and yield the row of each.

    Args:
        chosen: entries to run.
        progress: called with each step, and with what each run observed.
        only: a key of ``SIDES``; None: both sides, which are compared.

    Raises:
        SandboxError: the clusters or the programs cannot be made.
    """
    programs = sorted({name for software in chosen for name in software.programs})
    tools = Tools(
        binaries=await binaries.ensure(programs, progress=progress),
        modules={name: await modules.source(name) for name in programs},
        python={
            one.environment: await environment.ensure(one.environment, progress)
            for one in chosen
            if one.environment
        },
    )
    async with _clusters(progress) as sandbox:
        await _start_virtual_node(sandbox)
        for software in chosen:
            progress(f"{software.name}: {software.versions}")
            yield await _row(software, sandbox, tools, progress, only)


@asynccontextmanager
async def _clusters(progress: Progress) -> AsyncIterator[Sandbox]:
    kept = os.environ.get("VIRTUAL_NODE_SANDBOX")
    made = Sandbox(lower=1, real_node=True, kwok_nodes=0, progress=progress)
    async with attached(Path(kept)) if kept else made as sandbox:
        yield sandbox


async def _start_virtual_node(sandbox: Sandbox) -> None:
    assert sandbox.bridge is not None
    config = configuration(sandbox, adopt=True)
    # Pods scrape the kubelet API, so it listens at an address that they reach.
    config["kubelet"] = {"nodeIP": sandbox.bridge.address, "address": sandbox.bridge.address, "port": 10250}
    # Software of both clusters has namespaces of the same name, so those of the upper cluster get another one below.
    cluster = config["clusters"][0]
    cluster["namespaces"]["map"] = {name: f"upper-{name}" for name in _SYSTEM_NAMESPACES}
    mesh = block("Istio", "values.yaml")["virtualNode"]["clusters"][0]["config"]
    cluster["namespaces"] |= mesh["namespaces"]
    cluster["namespaces"]["allowed"] = [*_SYSTEM_NAMESPACES, "company-*", "default"]
    # Published manifests of monitoring have the priority of a cluster's own programs.
    cluster["policy"] = {
        "namespaces": {
            "company-*": {"priorityClasses": ["system-cluster-critical"]},
            "company-istio": mesh["policy"]["namespaces"]["shop"],
        }
    }
    config["ignore"] = {"presets": list(_PRESETS)}
    file = sandbox.directory / "virtual-node.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    await sandbox.upper.kubectl("delete", "nodes", "-l", "type=virtual-kubelet", "--ignore-not-found")
    address = {"VKUBELET_POD_IP": sandbox.bridge.address}
    process = await sandbox.start_virtual_node("--config", str(file), env=address)
    await sandbox.upper.kubectl("wait", "--for=create", f"node/{VIRTUAL_NODE}", "--timeout=60s", check=False)
    process.check()
    await node_ready(sandbox.upper, VIRTUAL_NODE)


async def _row(
    software: Software, sandbox: Sandbox, tools: Tools, progress: Progress, only: str | None
) -> Row:
    """Return the result of one entry; an error of the software or of the virtual node is a result, too."""
    seen: dict[bool, Observations] = {}
    errors: dict[bool, str] = {}
    async with AsyncExitStack() as both:
        for virtual in SIDES.values() if only is None else [SIDES[only]]:
            place = Place(
                sandbox,
                tools,
                python=tools.python.get(software.environment),
                virtual=virtual,
                namespace=f"company-{software.name}",
            )
            failed: list[tuple[str, str]] = []
            where = "on the virtual node" if virtual else "directly"
            try:
                async with AsyncExitStack() as alone:
                    await alone.enter_async_context(place.own_namespace())
                    stays = software.both and not virtual
                    await (both if stays else alone).enter_async_context(place.installed)
                    await alone.enter_async_context(place.stack)
                    try:
                        seen[virtual] = await software.run(place)
                    except BaseException:
                        failed = [*evidence(sandbox, place.namespace), *await place.logs()]
                        raise
                progress(f"{software.name} {where}: {json.dumps(seen[virtual], default=str)}")
            except (SandboxError, pytest.fail.Exception, AssertionError, LookupError) as error:
                errors[virtual] = str(error)
                progress(f"{software.name} {where} failed: {error}")
                for title, text in failed:
                    progress(f"--- {title}\n{text}")
    result = f"fails: {_brief(errors[True])}" if True in errors else "works"
    if False in errors:
        result += f"; {FAILS_DIRECTLY}: {_brief(errors[False])}"
    told = difference(seen[False], seen[True]) if seen.keys() == {False, True} else "not compared"
    today = dt.datetime.now(dt.UTC).date().isoformat()
    return Row(software.name, software.versions, software.job, result, told, today)


def _brief(error: str) -> str:
    """Return the line of an error for the table: what was waited for, or how the output of a command ends."""
    lines = [line for line in error.splitlines() if line.strip()] or ["no text"]
    return (lines[0] if lines[0].startswith("not so within") else lines[-1])[:200]
