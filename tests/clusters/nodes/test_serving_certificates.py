"""Serving certificates with an upper apiserver that verifies kubelets: self-signed, signed, approved, renewed.

The virtual nodes run under a ServiceAccount with exactly the rights of the table.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509

from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.rights import resolved
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.process import Process
from tests.clusters.virtual_nodes import pod
from tests.waiting import PATIENCE, create, eventually, get, node_ready, ready
from virtual_node.rights import daemon, manifests

pytestmark = [pytest.mark.e2e]
SELF_SIGNED, SIGNED, BY_HAND, SHORT = NODES = ("vn-self", "vn-csr", "vn-manual", "vn-short")
ACCOUNTS = "virtual-nodes"
CRI = "2026-01-01T00:00:00.000000000Z stdout F "
"""Prefix of log lines of container runtimes, which kwok expects."""
FIRST_LINE = "a line of the container"
SHORT_LIFE = 45
"""Seconds; stands for a certificate of a year."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(tmp_path_factory) -> AsyncIterator[Sandbox]:
    """A verifying upper cluster, and a simulated lower one whose pods have a log and a shell."""
    directory: Path = tmp_path_factory.mktemp("serving") / "sandbox"
    ca = directory / "upper" / "pki" / "ca.crt"
    async with Sandbox(
        lower=1,
        directory=directory,
        upper_apiserver_args=[
            f"--kubelet-certificate-authority={ca}",
            # As in most clusters: nodes may request certificates of their own name only.
            "--enable-admission-plugins=NodeRestriction",
        ],
    ) as sandbox:
        await _give_streams(sandbox.lower[0])
        all_nodes = resolved(daemon.UPPER, names={VIRTUAL_NODE: NODES})
        csr = (*daemon.UPPER_CSR, *daemon.UPPER_CSR_APPROVAL)
        role = manifests.cluster_role([*all_nodes, *resolved(csr, names={VIRTUAL_NODE: NODES[1:]})])
        await sandbox.upper.apply(role, *manifests.account(ACCOUNTS), manifests.legacy_token(ACCOUNTS))
        yield sandbox


@pytest.fixture
def upper(clusters: Sandbox) -> Cluster:
    """The cluster of the users."""
    return clusters.upper


def _log_file(lower: Cluster) -> Path:
    return lower.directory / "container.log"


async def _give_streams(lower: Cluster) -> None:
    """Configure kwok to serve a file as every container's log, and to run commands on this machine."""
    log, config = _log_file(lower), lower.directory / "kwok.yaml"
    log.write_text(f"{CRI}{FIRST_LINE}\n", encoding="utf-8")
    version = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "metadata": {"name": "all"}}
    streams: list[dict[str, Any]] = [
        {**version, "kind": "ClusterLogs", "spec": {"logs": [{"logsFile": str(log), "follow": True}]}},
        {**version, "kind": "ClusterExec", "spec": {"execs": [{"local": {}}]}},
    ]
    config.write_text("\n---\n".join(json.dumps(entry) for entry in streams), encoding="utf-8")
    (kwok,) = lower.nodes
    await kwok.stop()
    # Otherwise its successor would wait until the leases expire.
    await lower.kubectl("-n", "kube-node-lease", "delete", "lease", "--all")
    kwok.argv.append(f"--config={config}")
    await kwok.start()


async def _kubeconfig(sandbox: Sandbox) -> Path:
    """Write a kubeconfig of the ServiceAccount; return its path."""
    upper, name = sandbox.upper, f"{manifests.NAME}-token"
    path = "jsonpath={.data.token}"

    async def there() -> bool:
        return bool((await upper.kubectl("-n", ACCOUNTS, "get", "secret", name, "-o", path)).stdout)

    await eventually(there, what="the token")
    token = (await upper.kubectl("-n", ACCOUNTS, "get", "secret", name, "-o", path)).stdout
    content = manifests.token_kubeconfig(
        cluster="upper",
        server=upper.server,
        ca=base64.b64encode(upper.ca.read_bytes()).decode(),
        token=base64.b64decode(token).decode(),
    )
    file = sandbox.directory / "account.kubeconfig"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


async def _flags(sandbox: Sandbox, node: str, *arguments: str) -> list[str]:
    """Return the command line of a virtual node."""
    return [
        f"--kubeconfig={await _kubeconfig(sandbox)}",
        f"--client-kubeconfig={sandbox.lower[0].kubeconfig}",
        f"--nodename={node}",
        "--enable-controllers=",
        "--adopt-namespaces=default",
        *arguments,
    ]


async def _start(sandbox: Sandbox, node: str, *arguments: str, name: str = "") -> Process:
    return await sandbox.start_virtual_node(
        *await _flags(sandbox, node, *arguments), name=name or node, env={"KUBELET_PORT": "0"}
    )


async def _virtual_node(sandbox: Sandbox, node: str, *arguments: str) -> Process:
    """Start a virtual node with a pod of its own name."""
    upper = sandbox.upper
    process = await _start(sandbox, node, *arguments)
    await node_ready(upper, node)
    await create(upper, "default", pod(node, "", node=node))
    await ready(upper, "default", node)
    return process


async def _refused(upper: Cluster, node: str) -> None:
    """Report whether logs and exec fail because the apiserver does not trust the certificate."""
    for command in (["logs", node], ["exec", node, "--", "true"]):
        done = await upper.kubectl(*command, check=False)
        assert done.returncode != 0
        assert "tls: failed to verify certificate: x509: " in done.stderr


async def _works(upper: Cluster, node: str) -> None:
    """Wait until logs and exec work."""

    async def trusted() -> bool:
        return FIRST_LINE in (await upper.kubectl("logs", node, check=False)).stdout

    await eventually(trusted, what=f"trust in {node}")
    assert (await upper.kubectl("exec", node, "--", "echo", "executed")).stdout == "executed\n"


async def _served(upper: Cluster, node: str) -> x509.Certificate:
    """Return the certificate that the node's kubelet API gives to a new connection."""
    port = (await get(upper, "", "node", node))["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    pem = await asyncio.to_thread(ssl.get_server_certificate, (LOOPBACK, port))
    return x509.load_pem_x509_certificate(pem.encode())


async def _requests(upper: Cluster, node: str) -> list[dict[str, Any]]:
    """Return CertificateSigningRequests that were made as the node."""
    found = (await get(upper, "", "certificatesigningrequests"))["items"]
    return [entry for entry in found if entry["spec"]["username"] == f"system:node:{node}"]


@pytest.mark.parametrize(
    ("node", "missing"), [(SIGNED, set()), (SELF_SIGNED, {"may users"})], ids=["granted", "not granted"]
)
async def test_check_knows_the_rights_that_csr_needs(clusters: Sandbox, node: str, missing: set[str]):
    """`virtual-node check` finds the table granted, and the impersonation of another node missing."""
    arguments = await _flags(
        clusters, node, "--rotate-server-certificates", "--approve-server-certificates", "-o", "json"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "check", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    verdicts = {
        entry["check"]: entry for entry in json.loads(output)["findings"] if entry["cluster"] == "upper"
    }
    assert {"may users", "may groups", "may certificatesigningrequests", "may signers"} <= verdicts.keys()
    assert {name for name, entry in verdicts.items() if not entry["ok"]} == missing
    for name in missing:
        assert f"impersonate system:node:{node}" in verdicts[name]["fix"]


async def test_a_verifying_apiserver_refuses_a_self_signed_certificate(clusters: Sandbox, upper: Cluster):
    """Without --rotate-server-certificates, logs and exec fail with an x509 error."""
    process = await _virtual_node(clusters, SELF_SIGNED)
    await _refused(upper, SELF_SIGNED)
    assert await _requests(upper, SELF_SIGNED) == []
    await process.kill()


async def test_a_self_approved_certificate_is_trusted(clusters: Sandbox, upper: Cluster):
    """With --approve-server-certificates, without manual steps, and no request remains."""
    process = await _virtual_node(
        clusters, SIGNED, "--rotate-server-certificates", "--approve-server-certificates"
    )
    await _works(upper, SIGNED)
    certificate = await _served(upper, SIGNED)
    assert certificate.issuer.rfc4514_string() == "CN=upper-ca"
    assert certificate.subject.rfc4514_string() == f"CN=system:node:{SIGNED},O=system:nodes"

    async def tidy() -> bool:
        return await _requests(upper, SIGNED) == []

    await eventually(tidy, what="no request left")
    await process.kill()


async def test_a_certificate_is_trusted_once_approved(clusters: Sandbox, upper: Cluster):
    """Until then it is refused, and an Event on the Node gives the command to run."""
    process = await _virtual_node(clusters, BY_HAND, "--rotate-server-certificates")
    await _refused(upper, BY_HAND)

    async def requested() -> bool:
        return len(await _requests(upper, BY_HAND)) == 1

    await eventually(requested, what="a request")
    (request,) = await _requests(upper, BY_HAND)
    name = request["metadata"]["name"]
    assert request["spec"]["groups"] == ["system:nodes", "system:authenticated"]

    async def is_reported() -> bool:
        described = (await upper.kubectl("describe", "node", BY_HAND)).stdout
        return f"kubectl certificate approve {name}" in described

    await eventually(is_reported, what="the Event")
    await upper.kubectl("certificate", "approve", name)
    await _works(upper, BY_HAND)
    await process.stop()


async def test_a_process_deletes_its_pending_request_at_its_end(clusters: Sandbox, upper: Cluster):
    """Its key is lost, so that an approval would be useless."""
    process = await _start(clusters, BY_HAND, "--rotate-server-certificates", name="again")

    async def pending() -> bool:
        return len(await _requests(upper, BY_HAND)) == 1

    await eventually(pending, what="a request")
    await process.stop()
    assert await _requests(upper, BY_HAND) == []


async def test_rotation_keeps_open_streams(clusters: Sandbox, upper: Cluster):
    """`logs -f` continues over a renewal, while new connections get, and trust, the new certificate."""
    manager = upper.controller_manager
    await manager.stop()
    manager.argv.append(f"--cluster-signing-duration={SHORT_LIFE}s")
    await manager.start()
    process = await _virtual_node(
        clusters, SHORT, "--rotate-server-certificates", "--approve-server-certificates"
    )
    await _works(upper, SHORT)
    follower = await asyncio.create_subprocess_exec(
        clusters.binaries["kubectl"], "--kubeconfig", upper.kubeconfig, "logs", "-f", SHORT,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await follower.stdout.readline() == f"{FIRST_LINE}\n".encode()
        first = await _served(upper, SHORT)

        async def renewed() -> bool:
            return (await _served(upper, SHORT)).serial_number != first.serial_number

        await eventually(renewed, within=SHORT_LIFE + PATIENCE, what="another certificate")
        second = await _served(upper, SHORT)
        assert second.not_valid_after_utc > first.not_valid_after_utc
        assert second.public_key() != first.public_key()
        with _log_file(clusters.lower[0]).open("a", encoding="utf-8") as log:
            log.write(f"{CRI}a line after the renewal\n")
        async with asyncio.timeout(PATIENCE):
            assert await follower.stdout.readline() == b"a line after the renewal\n"
        assert follower.returncode is None
        await _works(upper, SHORT)
    finally:
        if follower.returncode is None:
            follower.kill()
        await follower.communicate()
    await process.kill()
