"""Evidence of a failed test on real clusters, collected before its clusters are removed.

Nodes, and of the test's namespace the pods and the latest events, in a few lines per cluster, then the log
lines of the programs under test about it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping

from hack.sandbox import Sandbox

_SECONDS = 10
_EVENTS, _LINES = 12, 40
_NODE_COLUMNS = (
    "NAME:.metadata.name,READY:.status.conditions[?(@.type=='Ready')].status,CPU:.status.allocatable.cpu,"
    "TAINTS:.spec.taints[*].key"
)
_POD_COLUMNS = (
    "NAME:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase,REASON:.status.reason,"
    "CONDITIONS:.status.conditions[*].reason,WAITING:.status.containerStatuses[*].state.waiting.reason,"
    "ENDS:.metadata.deletionTimestamp"
)


def sandboxes(arguments: Mapping[str, object]) -> list[Sandbox]:
    """Return the sandboxes among a test's fixtures, or in their attribute ``sandbox``; each once."""
    found = [getattr(value, "sandbox", value) for value in arguments.values()]
    return list({id(one): one for one in found if isinstance(one, Sandbox)}.values())


def evidence(sandbox: Sandbox, namespace: str | None) -> Iterator[tuple[str, str]]:
    """Return titles and texts, to be shown with the report of a failed test."""
    for process in sandbox.processes:
        log = process.log
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        if namespace is not None:
            yield f"{log.stem} about {namespace}", _last(lines, namespace)
        yield f"{log.stem}, warnings", _last(lines, "warning", "error")
    for cluster in sandbox.clusters:
        kubectl = [str(sandbox.binaries["kubectl"]), f"--kubeconfig={cluster.kubeconfig}", "get"]
        output = [_output(*kubectl, "nodes", f"--output=custom-columns={_NODE_COLUMNS}")]
        if namespace is not None:
            kubectl.append(f"--namespace={namespace}")
            output.append(_output(*kubectl, "pods", f"--output=custom-columns={_POD_COLUMNS}"))
            events = _output(*kubectl, "events", "--sort-by=.metadata.creationTimestamp")
            output += events.splitlines()[-_EVENTS:]
        yield f"cluster {cluster.name}", "\n".join(output)


def _last(lines: list[str], *words: str) -> str:
    return "\n".join([line for line in lines if any(word in line for word in words)][-_LINES:])


def _output(*command: str) -> str:
    # A report is made outside of the loop, so blocking is harmless.
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).rstrip()
