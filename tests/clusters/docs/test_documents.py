"""Runs the commands of the README and the guides, page by page, on real clusters.

The upper cluster has a simulated node, so the chart's pods are scheduled and never run. The same programs run
beside it: a virtual node for each lower cluster, and the webhook. A block that cannot run gives the reason in
a comment of the page: ``<!-- not run: REASON -->``. For these blocks only the flags are checked. ``<!-- run
on its own -->`` marks an alternative to the previous way to install.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from clusterset.model.names import ANNOTATION_LOWER_UID, CONDITION_ADMITTED
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.command import Completed, command
from hack.sandbox.commands import environment
from hack.sandbox.components.scheduling import start_webhook
from tests.clusters.docs.documents import PAGES, ROOT, START, blocks, commands
from tests.waiting import eventually, get, node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
NAMES = {"lower1": "lower1", "tokyo": "lower2"}
"""Lower clusters as pages call them → of the sandbox."""
FILES = {
    "upper": ("UPPER.yaml", "upper.yaml", "UPPER_KUBECONFIG"),
    "lower1": ("LOWER.yaml", "LOWER1.yaml", "LOWER_ADMIN.yaml", "LOWER_ADMIN_KUBECONFIG"),
    "lower2": ("tokyo.yaml", "tokyo-admin.yaml"),
}
"""Cluster of the sandbox → files with its kubeconfig in the page's folder."""
INSTALLED = (
    "helm install virtual-node charts/virtual-node --namespace virtual-node-system --create-namespace --wait"
)
INSTALL = ROOT / "docs/operate/install.md"
LATER = frozenset({"add-a-cluster.md", "schedule.md", "swarm.md", "upgrade.md"})
"""Pages for readers who have installed the chart, and have the files of the page ``INSTALL``."""
RUN = [
    page
    for page in PAGES
    if page != START and any(one.script and not one.file and not one.reason for one in blocks(page))
]
_WORKLOADS = ("PriorityClass", "Pod", "Deployment", "StatefulSet", "Job")
SHARED = ("default", "kube-system", "kube-node-lease")
_SECONDS = 120.0
_HELM = """#!/bin/sh
# Programs do not run on simulated nodes, and a webhook without a server would refuse every labelled pod.
case $1 in
  install|upgrade) exec {helm} "$@" --set webhook.enabled=false ;;
esac
exec {helm} "$@"
"""
_ELSEWHERE = ("docker", "kind", "pip")
"""Programs that no test machine has, or that would change the tests' own Python; tests/unit/docs checks their arguments."""
_PLACES = '{range .items[*]}{.metadata.namespace}{" "}{.kind}/{.metadata.name}{"\\n"}{end}'
KINDS = (
    "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,storageclasses,priorityclasses,csidrivers"
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    """An upper cluster and two lower ones, with virtual nodes named as in the pages."""
    if os.geteuid() != 0:
        pytest.skip("API servers on a bridge need root")
    directory = tmp_path_factory.mktemp("docs") / "sandbox"
    async with Sandbox(
        lower=2, kwok_nodes=1, upper_kwok_nodes=1, bridged=True, directory=directory
    ) as sandbox:
        lower = {cluster.name: cluster for cluster in sandbox.lower}
        config = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [
                {
                    "name": name,
                    "kubeconfig": str(lower[of].kubeconfig),
                    "labels": {"clusterID": name},
                    "policy": {"schedulerNames": ["volcano"]},  # use/schedule.md says to set it
                }
                for name, of in NAMES.items()
            ],
        }
        file = directory / "config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file))
        for name in NAMES:
            await node_ready(sandbox.upper, name)
        await start_webhook(sandbox)
        await sandbox.start_process(
            "swarm",
            [
                sys.executable,
                "-m",
                "swarm",
                f"--kubeconfig={sandbox.upper.kubeconfig}",
                "--leader-elect=false",
            ],
        )
        program = (await binaries.ensure(["helm"]))["helm"]
        shim = directory / "helm"
        shim.write_text(_HELM.format(helm=program), encoding="utf-8")
        shim.chmod(0o755)
        nothing = directory / "nothing"
        nothing.write_text("#!/bin/sh\n", encoding="utf-8")
        nothing.chmod(0o755)
        environment.write(sandbox, programs={"helm": shim, **dict.fromkeys(_ELSEWHERE, nothing)})
        yield sandbox


@pytest.fixture
def folder(clusters: Sandbox, tmp_path: Path) -> Path:
    """The page's working folder: a checkout with the kubeconfigs of the clusters."""
    for name in ("charts", "hack", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # A page may change its current namespace.
    (tmp_path / "current.yaml").write_bytes(clusters.upper.kubeconfig.read_bytes())
    for cluster in clusters.clusters:
        for name in FILES[cluster.name]:
            (tmp_path / name).write_bytes(cluster.kubeconfig.read_bytes())
    return tmp_path


async def _bash(sandbox: Sandbox, folder: Path, script: str) -> Completed:
    own = {
        "PATH": f"{sandbox.directory / 'bin'}:{os.environ['PATH']}",
        "KUBECONFIG": str(folder / "current.yaml"),
        "HOME": str(folder),
        "PWD": str(folder),
    }
    return await command(
        ["bash", "-c", f"cd {folder}; set -euo pipefail\n{script}"],
        env={**os.environ, **own}, check=False, timeout=_SECONDS,
    )  # fmt: skip


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
async def test_the_commands_of_a_page_work(clusters: Sandbox, folder: Path, page: Path):
    """Each unmarked block succeeds, after those before it and with the files that the page has written."""
    before = await _all_there(clusters)
    try:
        if page.name in LATER:
            for block in blocks(INSTALL):
                if block.file:
                    (folder / block.file).write_text(block.script, encoding="utf-8")
            done = await _bash(clusters, folder, INSTALLED)
            assert done.returncode == 0, done.stderr
        alone = False
        for block in blocks(page):
            if block.file:
                (folder / block.file).write_text(block.script, encoding="utf-8")
            elif not block.reason:
                if block.alone or alone:
                    await _clean(clusters, folder, before)
                if alone and not block.alone:
                    done = await _bash(clusters, folder, INSTALLED)
                    assert done.returncode == 0, done.stderr
                alone = block.alone
                done = await _bash(clusters, folder, block.script)
                output = f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
                assert done.returncode == 0, (
                    f"{block.place}: exit code {done.returncode}\n{block.script}\n{output}"
                )
    finally:
        await _clean(clusters, folder, before)


EXAMPLES = ("use/schedule.md", "use/division.md", "use/pod-groups.md")
"""Pages with a namespace for their examples."""


@pytest.mark.parametrize("page", EXAMPLES)
async def test_pods_of_pasted_examples_get_a_lower_pod(clusters: Sandbox, folder: Path, page: str):
    """In the namespace that the page creates first. Its examples without a namespace are created as they are."""
    before = await _all_there(clusters)
    path = ROOT / "docs" / page
    try:
        first = next(one for one in blocks(path) if "kubectl create namespace" in one.script)
        assert (await _bash(clusters, folder, first.script)).returncode == 0
        objects = [one for name, one in _objects() if name == f"docs/{page}" and one["kind"] in _WORKLOADS]
        assert objects
        objects.sort(key=lambda one: one["kind"] != "PriorityClass")  # pods name it
        (folder / "examples.json").write_text(
            json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
        )
        done = await _bash(clusters, folder, "kubectl apply --filename examples.json")
        assert done.returncode == 0, done.stderr

        async def are_mirrored() -> bool:
            pods = (await get(clusters.upper, "examples", "pods"))["items"]
            bound = [pod for pod in pods if pod["spec"].get("nodeName") in NAMES]
            refused = [
                one
                for pod in bound
                for one in pod["status"].get("conditions") or ()
                if one["type"] == CONDITION_ADMITTED
            ]
            assert refused == []
            return bool(bound) and all(
                ANNOTATION_LOWER_UID in pod["metadata"].get("annotations", {}) for pod in bound
            )

        await eventually(are_mirrored, what="every bound pod has a lower pod")
    finally:
        await _clean(clusters, folder, before)


async def _clean(sandbox: Sandbox, folder: Path, before: Mapping[str, frozenset[tuple[str, str]]]) -> None:
    """Delete what the page added to the clusters."""
    await _bash(
        sandbox, folder, "helm uninstall virtual-node --namespace virtual-node-system --no-hooks || true"
    )
    await asyncio.gather(*(_restore(cluster, before[cluster.name]) for cluster in sandbox.clusters))


async def _restore(cluster: Cluster, before: frozenset[tuple[str, str]]) -> None:
    made = await _there(cluster) - before
    by_space = {space: sorted(name for where, name in made if where == space) for space in ("", *SHARED)}
    await asyncio.gather(
        *(
            cluster.kubectl("delete", f"--namespace={space}", "--ignore-not-found", "--timeout=60s", *names)
            for space, names in by_space.items()
            if names
        )
    )


async def _all_there(sandbox: Sandbox) -> dict[str, frozenset[tuple[str, str]]]:
    """Return the objects of each cluster, by its name."""
    found = await asyncio.gather(*map(_there, sandbox.clusters))
    return {cluster.name: there for cluster, there in zip(sandbox.clusters, found, strict=True)}


async def _there(cluster: Cluster) -> frozenset[tuple[str, str]]:
    """Return the objects that a page may make in a cluster, outside of its own namespaces: namespace and ``kind/name``."""
    wide, narrow = await asyncio.gather(
        cluster.kubectl("get", KINDS, "-o", "name"),
        cluster.kubectl("get", "roles,rolebindings,pods", "--all-namespaces", "-o", f"jsonpath={_PLACES}"),
    )
    placed = (tuple(line.split()) for line in narrow.stdout.splitlines())
    return frozenset({("", name) for name in wide.stdout.split()}) | {
        (space, name) for space, name in placed if space in SHARED
    }


NESTED = {"kubectl": {"auth", "certificate", "config", "create", "rollout", "secret"}, "helm": {"get"}}
"""Program → subcommands with subcommands of their own."""
VALUED = {"--namespace", "-n", "--kubeconfig", "--context"}
"""Flags before a subcommand that have a value."""


async def test_every_command_is_well_formed():
    """Bash can read every block, run or not, and kubectl and helm have the subcommands and flags that it uses."""
    programs = await binaries.ensure(["kubectl", "helm"])
    every = [one for page in PAGES for one in blocks(page) if not one.file]
    reads = await _few(command(["bash", "-n"], input=one.script, check=False) for one in every)
    wrong = [f"{one.place}: {read.stderr}" for one, read in zip(every, reads, strict=True) if read.returncode]
    for block in every:
        for words in commands(block.script):
            if words[0] in NESTED and words[1:2] != ["virtual-node"]:
                unknown = await _unknown_flags(programs, words)
                wrong += [f"{block.place}: {' '.join(words[:4])} {flag}" for flag in unknown]
    assert wrong == []


async def _few(work: Iterable[Awaitable[Completed]]) -> list[Completed]:
    """Await all with bounded concurrency: each is a process."""
    turns = asyncio.Semaphore(4)

    async def one(awaited: Awaitable[Completed]) -> Completed:
        async with turns:
            return await awaited

    return await asyncio.gather(*map(one, work))


_KNOWN: dict[tuple[str, ...], frozenset[str]] = {}


async def _unknown_flags(programs: Mapping[str, Path], words: list[str]) -> list[str]:
    """Return the flags of a command that its help does not name."""
    known = await _flags(programs, tuple(_subcommand(words)))
    given = [word for word in words[: words.index("--") if "--" in words else None] if word.startswith("-")]
    return [flag for flag in given if flag != "-" and flag.partition("=")[0] not in known]


def _subcommand(words: list[str]) -> Iterator[str]:
    """Yield the program and its subcommands, which may stand behind flags."""
    plain = [word for before, word in pairwise(words) if not word.startswith("-") and before not in VALUED]
    yield words[0]
    for word in plain[:3]:
        yield word
        if word not in NESTED[words[0]]:
            break


async def _flags(programs: Mapping[str, Path], called: tuple[str, ...]) -> frozenset[str]:
    if called not in _KNOWN:
        program = [str(programs[called[0]]), *called[1:]]
        output = (await command([*program, "--help"], check=False)).stdout
        if called[0] == "kubectl":
            output += (await command([program[0], "options"], check=False)).stdout
        assert "unknown command" not in output, " ".join(called)
        _KNOWN[called] = frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", output)) | {"--help"}
    return _KNOWN[called]


@cache
def _objects() -> list[tuple[str, dict[str, Any]]]:
    """Kubernetes' own objects in the pages' YAML: page → object."""
    fence = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
    found = []
    for page in PAGES:
        for indent, body in fence.findall(page.read_text(encoding="utf-8")):
            text = "\n".join(line.removeprefix(indent) for line in body.splitlines())
            found += [
                (str(page.relative_to(ROOT)), one)
                for one in yaml.safe_load_all(text)
                if isinstance(one, dict) and "apiVersion" in one and "metadata" in one
            ]
    return found


async def test_the_objects_of_the_pages_are_valid(clusters: Sandbox, folder: Path):
    """The API server accepts each of them in a dry run that refuses unknown fields."""
    before = await _all_there(clusters)
    upper = clusters.upper
    spaces = {one["metadata"].get("namespace", "default") for _, one in _objects()} - {
        "default",
        "kube-system",
    }
    await _few(upper.kubectl("create", "namespace", space) for space in spaces)
    refused = []
    # Pods name their PriorityClass, so these are created before them.
    for is_class in (True, False):
        objects = [(page, one) for page, one in _objects() if (one["kind"] == "PriorityClass") is is_class]
        dry = [] if is_class else ["--dry-run=server"]
        answers = await _few(
            upper.kubectl(
                "create", *dry, "--validate=strict", "--filename", "-", input=json.dumps(one), check=False
            )
            for _, one in objects
        )
        refused += [
            f"{page}: {one['kind']} {one['metadata'].get('name')}: {done.stderr.strip()}"
            for (page, one), done in zip(objects, answers, strict=True)
            if done.returncode
            and "no matches for kind" not in done.stderr
            and "already exists" not in done.stderr
        ]
    await _clean(clusters, folder, before)
    assert refused == []
    assert len(_objects()) > 10
