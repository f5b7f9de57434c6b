"""``virtual-node status`` with 10,000 pods: by the answer of a process, and by lists; and commands that send no request.

A prepared API server in a process of its own serves TLS on loopback. Seconds are medians of runs that alternate, so that the
ratios hold on a machine with other work, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from clusterset.model import names
from controller_runtime.apimachinery.timestamps import micro_time
from controller_runtime.tls.key_pairs import make_ca, sign
from tests.benchmarks.canned_pods import templates
from tests.benchmarks.canned_server import virtual_node
from tests.benchmarks.tables import table, target, targets
from tests.kubeconfigs import whole, write
from tests.serving import served, server_context
from virtual_node.node_summary import PATH, Summaries, summarize, summary_of

PODS, RUNS = 10_000, 7
STATUS_SECONDS, HELP_SECONDS = 0.3, 0.15
"""Targets on an idle machine."""
_NODES = "/api/v1/nodes"


async def measure(pods: int, runs: int) -> dict[str, Any]:
    """Return seconds of each command line, and the ratio of the two ways of ``status``."""
    with tempfile.TemporaryDirectory() as name:
        async with _server(Path(name), pods) as (answering, listing):
            return await asyncio.to_thread(_figures, answering, listing, pods, runs)


def _figures(answering: str, listing: str, pods: int, runs: int) -> dict[str, Any]:
    status = ("status", "-o", "json", "--kubeconfig")
    lines: dict[str, Sequence[str]] = {
        "python -c pass": ("-c", "pass"),
        "virtual-node --help": _words("--help"),
        "virtual-node status --help": _words("status", "--help"),
        "virtual-node __complete status --": _words("__complete", "status", "--"),
        "virtual-node __complete status ''": _words("__complete", "status", "--kubeconfig", answering, ""),
        "virtual-node status, by the answer of the process": _words(*status, answering),
        "virtual-node status, by lists of the pods": _words(*status, listing),
    }
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in lines}
    outputs: dict[str, Any] = {}
    for _ in range(runs):
        for what, words in lines.items():
            outputs[what], seconds, cpu = _run(words)
            found[what].append((seconds, cpu))
    rows: list[dict[str, Any]] = [
        {
            "command": what,
            "seconds": statistics.median(seconds for seconds, _ in times),
            "leastSeconds": min(seconds for seconds, _ in times),
            "cpuSeconds": statistics.median(cpu for _, cpu in times),
        }
        for what, times in found.items()
    ]
    by_command = {row["command"]: row for row in rows}
    answered, listed = (by_command[what] for what in list(lines)[-2:])
    counts = [
        [node["pods"] for node in msgspec.json.decode(outputs[row["command"]])["nodes"]]
        for row in (answered, listed)
    ]
    if counts[0] != counts[1] or sum(one["total"] for one in counts[0]) != pods:
        raise RuntimeError(f"the two ways differ: {counts}")
    helps = max(by_command[what]["leastSeconds"] for what in list(lines)[1:4])
    return {
        "pods": pods,
        "rows": rows,
        "ratio": listed["seconds"] / answered["seconds"],
        "targets": [
            target(
                f"`virtual-node status`, {pods:,} pods, fastest run",
                answered["leastSeconds"],
                STATUS_SECONDS,
                "s",
            ),
            target("help and completion of flags, fastest run", helps, HELP_SECONDS, "s"),
        ],
    }


def _words(*words: str) -> Sequence[str]:
    return ("-m", "virtual_node", *words)


def _run(words: Sequence[str]) -> tuple[bytes, float, float]:
    """Run Python; return its output, wall-clock seconds and CPU seconds."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {process.returncode}")
    return output, seconds, used.ru_utime + used.ru_stime


@contextlib.asynccontextmanager
async def _server(directory: Path, pods: int) -> AsyncIterator[tuple[str, str]]:
    """Start the API server; yield a kubeconfig with which processes answer, and one with which they do not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.bench_status",
        f"--serve={directory}",
        f"--pods={pods}",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield str(directory / "answering"), str(directory / "listing")
    finally:
        process.kill()
        await process.wait()


class _Server:
    """Answers from bodies that are made before the first request."""

    def __init__(self, pods: int) -> None:
        upper = templates("vn-0")[0]
        self._pods = [upper.body(number) for number in range(pods)]
        summaries = map(summary_of, map(msgspec.json.decode, self._pods))
        self._summary = msgspec.json.encode(Summaries({"vn-0": summarize(summaries)}))

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request, with the summary only below ``/answering``."""
        path = f"/{request.match_info['path']}"
        if path == "/version":
            return web.json_response({"gitVersion": "v1.34.4"})
        if path == f"{_NODES}/vn-0/proxy{PATH}" and request.match_info["way"] == "answering":
            return web.Response(body=self._summary, content_type="application/json")
        if "/proxy/" in path:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return self._page(request, self._items(request, path))

    def _items(self, request: web.Request, path: str) -> Sequence[bytes]:
        if path == _NODES:
            return [virtual_node(0)]
        if path.endswith("/leases"):
            annotations = {names.ANNOTATION_REPLICA: "virtual-node-0"}
            spec = {
                "holderIdentity": "x",
                "leaseDurationSeconds": 40,
                "renewTime": micro_time(datetime.now(UTC)),
            }
            return [
                msgspec.json.encode({"metadata": {"name": "vn-0", "annotations": annotations}, "spec": spec})
            ]
        return self._pods if request.query.get("fieldSelector") == "spec.nodeName=vn-0" else []

    @staticmethod
    def _page(request: web.Request, items: Sequence[bytes]) -> web.Response:
        start, limit = int(request.query.get("continue") or 0), int(request.query.get("limit") or 0)
        end = min(len(items), start + limit) if limit else len(items)
        token = b'"continue":"%d"' % end if end < len(items) else b""
        body = b'{"kind":"List","metadata":{%s},"items":[%s]}' % (token, b",".join(items[start:end]))
        return web.Response(body=body, content_type="application/json")


async def _serve(directory: Path, pods: int) -> None:
    authority = make_ca("benchmark")
    context = server_context(sign(authority, "server", hosts=["127.0.0.1"]))
    (directory / "ca.crt").write_bytes(authority.certificate)
    async with served(web.get("/{way}/{path:.*}", _Server(pods).answer), tls=context) as port:
        for way in ("answering", "listing"):
            cluster = {"server": f"https://127.0.0.1:{port}/{way}", "certificate-authority": "ca.crt"}
            write(directory / way, whole(cluster=cluster, user={"token": "t"}))
        print(port, flush=True)
        await asyncio.Event().wait()


def main(arguments: Sequence[str]) -> None:
    """Print a table, the ratio and the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--serve", type=Path, help="only serve, and write kubeconfigs to this directory")
    options = parser.parse_args(arguments)
    if options.serve:
        asyncio.run(_serve(options.serve, options.pods))
        return
    figures = asyncio.run(measure(options.pods, options.runs))
    rows = [
        [row["command"], *(f"{row[key]:.2f}" for key in ("seconds", "leastSeconds", "cpuSeconds"))]
        for row in figures["rows"]
    ]
    print(table(["", "seconds, median", "seconds, least", "CPU seconds, median"], rows))
    print(
        f"\nby lists / by the answer of the process: {figures['ratio']:.1f}, with {figures['pods']:,} pods\n"
    )
    print(targets({"figures": figures}))


if __name__ == "__main__":
    main(sys.argv[1:])
