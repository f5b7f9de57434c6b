"""Startup errors of processes: one plain line and exit code 2."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from controller_runtime.auth import kubeconfig

NODE, WEBHOOK, DESCHEDULER, SCHEDULER = "virtual_node", "webhook", "descheduler", "multi_scheduler"
SWARM = "swarm"
PROGRAMS = {
    NODE: "virtual-node",
    WEBHOOK: "virtual-node-webhook",
    DESCHEDULER: "virtual-node-descheduler",
    SCHEDULER: "virtual-node-multi-scheduler",
    SWARM: "virtual-node-swarm",
}
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", __name__, *(f"{module}.app" for module in PROGRAMS)])
CLUSTERS = "apiVersion: virtual-node.io/v1alpha1\nkind: {kind}\nclusters:\n- name: a\n  kubeconfig: {file}\n"


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Files and addresses that the command lines use in braces."""
    nowhere = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    whole = {
        "clusters": [nowhere],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    files = {
        "kube": json.dumps(whole),
        "broken": "clusters:\n- name: [x\n  foo: }\n",
        "clusters": CLUSTERS.format(kind="VirtualNodeConfiguration", file="kube"),
        "misspelt": CLUSTERS.format(kind="VirtualNodeConfiguration", file="kube") + "  lables: {a: b}\n",
        "scheduler": CLUSTERS.format(kind="MultiSchedulerConfiguration", file="kube"),
        "orphaned": CLUSTERS.format(kind="MultiSchedulerConfiguration", file="missing"),
        "policy": "apiVersion: descheduler/v1alpha1\nkind: DeschedulerPolicy\nstrategy: {}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        yield {
            **{name: str(tmp_path / name) for name in [*files, "missing"]},
            "taken": f"127.0.0.1:{port}",
            "port": str(port),
        }


def _run(
    module: str,
    line: str,
    places: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    is_broken: bool = False,
) -> tuple[int, str, str]:
    """Return exit code, the last line of stderr and the lines before it.

    The process is a fork of one that has imported the programs, because imports take most of a start. If it is
    broken, it fails where it reads a kubeconfig.
    """
    errors = Path(places["missing"]).with_name("stderr")
    process = _FORKS.Process(
        target=_become,
        args=(
            module,
            line.format(**places).split(),
            {**os.environ, "KUBECONFIG": "", **(environment or {})},
            errors,
        ),
        kwargs={"is_broken": is_broken},
        daemon=True,
    )
    process.start()
    process.join(120)
    assert process.exitcode is not None, f"{module} still runs"
    before, _, last = errors.read_text("utf-8").rstrip("\n").rpartition("\n")
    return process.exitcode, last, before


def _become(
    module: str, arguments: list[str], environment: Mapping[str, str], errors: Path, *, is_broken: bool
) -> None:
    """Run ``python -m module`` in this process."""
    os.environ.clear()
    os.environ.update(environment)
    with errors.open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if is_broken:
        kubeconfig.load = lambda *_, **__: 1 / 0  # type: ignore[assignment]
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


_UPPER = "--kubeconfig={kube}"
_BOTH = f"{_UPPER} --client-kubeconfig={{kube}}"


@pytest.mark.parametrize(
    ("module", "line", "said"),
    [
        (
            NODE,
            "",
            "--client-kubeconfig: required: the kubeconfig of the lower cluster (or --config for many)",
        ),
        (NODE, "--kubeconfig={missing} --client-kubeconfig={kube}", "kubeconfig {missing}: no such file"),
        (NODE, "--kubeconfig={kube} --client-kubeconfig={missing}", "kubeconfig {missing}: no such file"),
        (
            NODE,
            "--kubeconfig={kube} --client-kubeconfig={broken}",
            "kubeconfig {broken}: cannot be read: line 3,",
        ),
        (
            NODE,
            f"{_BOTH} --metrics-addr={{taken}}",
            "--metrics-addr (metricsAddress): address {taken} is already",
        ),
        (NODE, f"{_BOTH} --web-addr={{taken}}", "--web-addr (webAddress): address {taken} is already in use"),
        (NODE, f"{_BOTH} --web-addr=8080", "--web-addr: address '8080' is not host:port"),
        (
            NODE,
            f"{_BOTH} --metrics-addr=::1:80",
            "--metrics-addr: address '::1:80': write an IPv6 address in br",
        ),
        (NODE, f"{_BOTH} --log-level=loud", "log level 'loud' is not one of trace, debug"),
        (NODE, f"{_BOTH} --pod-sync-workers=many", "--pod-sync-workers: invalid int value: 'many'"),
        (NODE, f"{_BOTH} --nodname=x", "unknown flag --nodname, did you mean --nodename?"),
        (NODE, "--config={missing}", "--config {missing}: No such file or directory"),
        (NODE, "--config={broken}", "{broken}: not YAML: line 3, column 6: did not find expected ',' or ']'"),
        (
            NODE,
            "--config={misspelt}",
            "{misspelt}: clusters[0]: unknown field `lables`, did you mean labels?",
        ),
        (
            NODE,
            f"{_BOTH} --startup-timeout=10ms",
            "the upper cluster did not answer within --startup-timeout",
        ),
        (WEBHOOK, "--kubeconfig={missing}", "kubeconfig {missing}: no such file"),
        (
            WEBHOOK,
            f"{_UPPER} --address=127.0.0.1 --port={{port}}",
            "--address, --port: address {taken} is already",
        ),
        (
            WEBHOOK,
            f"{_UPPER} --port=0 --health-addr={{taken}}",
            "--health-addr: address {taken} is already in use",
        ),
        (WEBHOOK, f"{_UPPER} --port=0 --health-addr=x", "--health-addr: address 'x' is not host:port"),
        (
            WEBHOOK,
            f"{_UPPER} --tlscert={{missing}} --tlskey={{missing}}",
            "{missing}: No such file or directory",
        ),
        (WEBHOOK, f"{_UPPER} --port=70000", "--port: 70000 must be at most 65535"),
        (DESCHEDULER, "--kubeconfig={missing}", "kubeconfig {missing}: no such file"),
        (
            DESCHEDULER,
            f"{_UPPER} --health-addr={{taken}}",
            "--health-addr: address {taken} is already in use",
        ),
        (DESCHEDULER, f"{_UPPER} --dryrun", "unknown flag --dryrun, did you mean --dry-run?"),
        (
            DESCHEDULER,
            f"{_UPPER} --policy-config-file={{policy}}",
            "{policy}: unknown field `strategy`, did you mean strategies?",
        ),
        (SCHEDULER, _UPPER, "--config: required; the file lists the lower clusters"),
        (SCHEDULER, "--kubeconfig={missing} --config={scheduler}", "kubeconfig {missing}: no such file"),
        (SCHEDULER, f"{_UPPER} --config={{orphaned}}", "kubeconfig {missing}: no such file"),
        (
            SCHEDULER,
            f"{_UPPER} --config={{scheduler}} --address=127.0.0.1 --port={{port}}",
            "--address, --port: add",
        ),
        (
            SCHEDULER,
            f"{_UPPER} --config={{scheduler}} --health-addr={{taken}}",
            "--health-addr: address {taken} is",
        ),
        (SCHEDULER, f"{_UPPER} --config={{scheduler}} --port=-1", "--port: -1 must be at least 0"),
        (SWARM, "--kubeconfig={missing}", "kubeconfig {missing}: no such file"),
        (SWARM, f"{_UPPER} --health-addr={{taken}}", "--health-addr: address {taken} is already in use"),
        (SWARM, f"{_UPPER} --nodname=x", "unknown flag --nodname"),
    ],
)
def test_errors_that_only_the_user_can_correct_are_one_plain_line(
    module: str, line: str, said: str, places: dict[str, str]
):
    """It names the flag, or the file and the field; before it there are at most ordinary log lines."""
    code, last, before = _run(module, line, places)
    assert (code, last[: len(PROGRAMS[module]) + 2]) == (2, f"{PROGRAMS[module]}: ")
    assert last.removeprefix(f"{PROGRAMS[module]}: ").startswith(said.format(**places)), last
    assert "Traceback" not in before
    assert not [one for one in before.splitlines() if json.loads(one)["level"] not in {"info", "warning"}]


def test_files_from_the_environment_are_checked_before_the_start(places: dict[str, str]):
    """As in tensile-kube's manifest, where the certificate of the kubelet API is one."""
    files = {"APISERVER_CERT_LOCATION": places["missing"], "APISERVER_KEY_LOCATION": places["missing"]}
    assert _run(NODE, _BOTH, places, environment=files)[:2] == (
        2,
        f"virtual-node: {places['missing']}: No such file or directory",
    )
    code, last, _ = _run(NODE, f"{_BOTH} --client-verify-ca={{broken}}", places)
    assert (code, last.startswith(f"virtual-node: client CA {places['broken']} cannot be used")) == (2, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stats", "virtual-node: unknown command 'stats', did you mean status?"),
        ("virtual", "virtual-node: unknown command 'virtual'; see 'virtual-node help'"),
        ("cleanup --dryrun", "virtual-node cleanup: unknown flag --dryrun, did you mean --dry-run?"),
        ("lower-cluster", "virtual-node lower-cluster: missing argument, one of join, "),
        ("diagnose pood web", "virtual-node diagnose: TYPE[/NAME]: 'pood' is not one of pod, node"),
        (
            "status --output jsn",
            "virtual-node status: -o/--output: 'jsn' is not one of table, wide, json, yaml, name, did",
        ),
        (
            "check --kubeconfig={missing} --client-kubeconfig={kube} extra",
            "virtual-node check: unexpected argument ex",
        ),
        ("status --kubeconfig={missing}", "virtual-node: kubeconfig {missing}: no such file"),
        (
            "cleanup --kubeconfig={missing} --client-kubeconfig={kube}",
            "virtual-node: kubeconfig {missing}: no such",
        ),
    ],
)
def test_a_user_command_reports_an_error_in_one_line(line: str, said: str, places: dict[str, str]):
    """With a suggestion."""
    code, last, before = _run(NODE, line, places)
    assert (code, before) == (2, "")
    assert last.startswith(said.format(**places)), last


@pytest.mark.parametrize("module", PROGRAMS)
def test_an_unexpected_failure_ends_with_1(module: str, places: dict[str, str]):
    """With its traceback in the log."""
    more = {SCHEDULER: " --config={scheduler}", NODE: " --client-kubeconfig={kube}"}
    code, last, _ = _run(module, _UPPER + more.get(module, ""), places, is_broken=True)
    told = json.loads(last)
    assert (code, told["level"], told["msg"]) == (1, "error", "unexpected error")
    assert "ZeroDivisionError" in told["exception"]
