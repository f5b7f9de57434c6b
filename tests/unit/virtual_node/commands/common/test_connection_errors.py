"""An unreachable cluster: one line with the problem, the kubeconfig, and what to do."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, error_from_response
from tests.unit.controller_runtime.loopback import failure, serve
from tests.unit.virtual_node.commands.run_command import Person, kubeconfig
from virtual_node import cli
from virtual_node.examine.expiry import Expiry
from virtual_node.examine.reader import explain_failure

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = ConnectionConfig("https://up:6443", ssl_context=ssl.create_default_context(), source="kubeconfig /k", context_name="prod")  # fmt: skip
CERTIFICATE = Expiry("", "ClientCertificate", "/k", ends=NOW - timedelta(days=3))
TOKEN = Expiry("", "Token", "/k", ends=NOW - timedelta(hours=5))


TERMINATING = (
    b'{"kind": "Status", "message": "namespace x is being terminated", "reason": "Forbidden", "code": 403,'
    b' "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}'
)


@pytest.mark.parametrize(
    ("error", "expiries", "told"),
    [
        (
            ApiError("https://up:6443: Cannot connect to host up:6443 ssl:default [Connect call failed ('::1', 6443)]"),
            [],
            "https://up:6443 (kubeconfig /k, context prod): nothing listens there; is the cluster running",
        ),
        (ApiError("Cannot connect to host up:6443 [Name or service not known]"), [], "its name cannot be resolved; is the"),
        (
            ApiError("https://up:6443: the proxy https://p:8090 answered 500 Internal Server Error: currently no tunnels available"),
            [],
            "currently no tunnels available; no agent of its tunnel is connected: does the agent run in the lower cluster",
        ),
        (
            ApiError("https://up:6443: the proxy http://p:3128: cannot connect: connection refused"),
            [],
            "the proxy http://p:3128: cannot connect: connection refused; is the proxy of proxy-url running",
        ),
        (
            ApiError("https://up:6443: the proxy https://p:8090: [SSL] sslv3 alert certificate expired (_ssl.c:2580)"),
            [],
            "alert certificate expired (_ssl.c:2580); renew the certificate of the proxy, or that of the kubeconfig",
        ),
        (ApiError("https://up:6443: no answer in time"), [], "no answer in time; is it reachable from here"),
        (
            ApiError("[SSLCertVerificationError: (1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)')]"),
            [],
            "its certificate is not trusted: unable to get local issuer certificate; give the kubeconfig the CA",
        ),
        (
            ApiError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)"),
            [],
            "certificate has expired; renew the API server's certificate",
        ),
        (error_from_response(401, b"", {}), [CERTIFICATE], "the kubeconfig's client certificate expired 3 days ago; renew it"),
        (error_from_response(401, b"", {}), [TOKEN], "the kubeconfig's token expired 5 h ago; renew it"),
        (error_from_response(401, b"", {}), [], "does not accept the kubeconfig's credentials (401); renew them"),
        (ApiError("remote error: tls: expired certificate"), [CERTIFICATE], "client certificate expired 3 days ago"),
        (error_from_response(503, b"etcd is away", {}), [], "etcd is away (503); check it: kubectl get --raw"),
        (error_from_response(403, b"nodes is forbidden", {}), [], "nodes is forbidden; ask an administrator"),
        (error_from_response(403, TERMINATING, {}), [], "is being terminated; repeat the command when"),
        (error_from_response(400, b"unable to parse", {}), [], "(kubeconfig /k, context prod): unable to parse (400)"),
        (ApiError("something new"), [], "https://up:6443 (kubeconfig /k, context prod): something new"),
    ],
)  # fmt: skip
def test_cause_and_next_step(error: ApiError, expiries: list[Expiry], told: str):
    """For each kind of failure; an expired credential is reported before a refused one."""
    assert told in str(explain_failure(error, PLACE, expiries=expiries, now=NOW))


def test_a_proxy_is_named():
    """Without its password."""
    place = ConnectionConfig("http://up:1", proxy_url="http://me:secret@proxy:3128", source="in-cluster")
    assert "(in-cluster, through http://proxy:3128)" in str(
        explain_failure(ApiError("x"), place, expiries=[], now=NOW)
    )


@pytest.mark.parametrize(
    "words", [["status"], ["diagnose", "pod/web"], ["diagnose", "node/vn"], ["diagnose", "deploy/web"]]
)
async def test_every_command_reports_it_in_one_line(person: Person, words: list[str]):
    """And ends with exit code 2."""
    person_file = kubeconfig(person.folder, "http://127.0.0.1:1")
    code = await asyncio.to_thread(cli.main, [*words, f"--kubeconfig={person_file}"])
    out, err = person.capsys.readouterr()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("virtual-node: http://127.0.0.1:1 (kubeconfig ")
    assert "context prod): nothing listens there; is the cluster running" in err


async def test_the_texts_are_those_of_the_client():
    """The table above uses the client's real messages."""
    async with serve(lambda _request: _refuse()) as server, Client(ConnectionConfig(server.url)) as client:
        with pytest.raises(ApiError) as caught:
            await client.version()
    place = ConnectionConfig(server.url, source="kubeconfig /k")
    assert "does not accept the kubeconfig's credentials" in str(
        explain_failure(caught.value, place, expiries=[], now=NOW)
    )


async def _refuse():
    return failure(401, "Unauthorized", "Unauthorized")
