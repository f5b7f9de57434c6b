"""The input of a credential plugin, and its valid and invalid outputs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from controller_runtime.auth import kubeconfig
from controller_runtime.auth.credentials import ExecCredentials, Plugin
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import TlsMaterial
from tests.kubeconfigs import whole, write
from tests.unit.controller_runtime.auth.exec_credentials.conftest import V1, Make, Program, bearer


async def test_input_of_the_plugin(make: Make, program: Program) -> None:
    """Arguments, environment and KUBERNETES_EXEC_INFO are those of the specification."""
    credentials = make(args=["a", "b c"], env={"EXTRA": "x"}, cluster={"server": "https://api"})
    await credentials.headers()
    (run,) = program.runs
    assert (run["args"], run["extra"]) == (["a", "b c"], "x")
    assert json.loads(run["info"]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://api"}},
    }


_ASKING = """
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print("Enter the code ABC:", file=sys.stderr, flush=True)
token = sys.stdin.readline().strip() if info["spec"]["interactive"] else "unasked"
status = {"token": token or "nothing"}
print(json.dumps({"kind": "ExecCredential", "apiVersion": info["apiVersion"], "status": status}))
"""
_CALLING = """
import asyncio, sys
from controller_runtime.auth import kubeconfig
from controller_runtime.errors import ConfigError

async def main():
    try:
        config = await kubeconfig.load(sys.argv[1])
        print(dict(await config.headers()))
    except ConfigError as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("mode", "expected"), [("IfAvailable", "typed"), ("Always", "typed"), ("Never", "unasked"), ("", "typed")]
)
async def test_a_plugin_asks_its_user_on_our_terminal(
    tmp_path: Path, program: Program, mode: str, expected: str
) -> None:
    """As with kubectl: a sign-in with a code in a browser shows the code on stderr, and may read stdin."""
    program.write(_ASKING)
    plugin = {"command": str(program.path), "apiVersion": V1, "interactiveMode": mode}
    path = write(tmp_path / "k", whole(user={"exec": plugin}))
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CALLING, path, stdin=theirs, stderr=theirs, stdout=asyncio.subprocess.PIPE
        )
        os.write(ours, b"typed\n")
        output, _ = await process.communicate()
        shown = os.read(ours, 65536)
    finally:
        os.close(theirs)
        os.close(ours)
    assert output.decode().strip() == str(bearer(expected))
    assert b"Enter the code ABC:" in shown


_STOPPING = """
import asyncio, sys
from controller_runtime.auth import kubeconfig

async def main():
    try:
        async with asyncio.timeout(0.5):
            await kubeconfig.load(sys.argv[1])
    except TimeoutError:
        print("stopped")

asyncio.run(main())
"""


async def test_a_cancelled_dialog_does_not_wait_for_the_child_of_a_wrapper(
    tmp_path: Path, program: Program
) -> None:
    """The child keeps the pipe of the output open, and is in our process group, which is not killed."""
    program.write("import subprocess\nsubprocess.run(['sleep', '8'])")
    path = write(tmp_path / "k", whole(user={"exec": {"command": str(program.path), "apiVersion": V1}}))
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _STOPPING, path, stdin=theirs, stderr=theirs, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(6):
            output, _ = await process.communicate()
    finally:
        os.close(theirs)
        os.close(ours)
    assert output.decode().strip() == "stopped"


async def test_much_output_on_stderr_does_not_block_the_plugin(make: Make, program: Program) -> None:
    """The end of it is part of the error."""
    program.write("import sys\nsys.stderr.write('x' * 2**20 + ' out of\\nluck')\nsys.exit(3)")
    with pytest.raises(ConfigError, match=r"exit code 3: x+ out of luck$") as caught:
        await make().headers()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("pipe", ["stdout", "stderr"])
async def test_endless_output_ends_the_plugin(make: Make, program: Program, pipe: str) -> None:
    """It is killed before it fills the memory."""
    program.write(f"import sys\nwhile True:\n    sys.{pipe}.write('x' * 2**20)")
    with pytest.raises(ConfigError, match="more than 4,194,304 bytes of output"):
        await make().headers()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "its output is not an ExecCredential"),
        ("hello", "its output is not an ExecCredential"),
        ("{}", f"its output is something else, not {V1} ExecCredential"),
        (
            json.dumps({"kind": "ExecCredential", "apiVersion": "v2"}),
            f"its output is v2 ExecCredential, not {V1}",
        ),
        (
            json.dumps({"kind": "ExecCredential", "apiVersion": V1}),
            "neither a token nor a client certificate",
        ),
        (
            json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"clientKeyData": "k"}}),
            "set both clientCertificateData and clientKeyData",
        ),
        (
            json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "a\nb"}}),
            "its token is not a token",
        ),
        (
            json.dumps(
                {
                    "kind": "ExecCredential",
                    "apiVersion": V1,
                    "status": {"token": "a", "expirationTimestamp": "2026-01-01T00:00:00"},
                }
            ),
            "has no time zone",
        ),
        (
            json.dumps(
                {
                    "kind": "ExecCredential",
                    "apiVersion": V1,
                    "status": {"token": "a", "expirationTimestamp": "soon"},
                }
            ),
            "its output is not an ExecCredential: .*expirationTimestamp",
        ),
    ],
)
async def test_bad_output(make: Make, program: Program, output: str, message: str) -> None:
    """The error names user, plugin and problem, on one line."""
    (program.directory / "answer.json").write_text(output)
    with pytest.raises(ConfigError, match=message) as caught:
        await make().headers()
    assert str(caught.value).startswith(f"users[name=u].user.exec: {program.path}: ")
    assert "\n" not in str(caught.value)


async def test_missing_plugin_gives_the_hint() -> None:
    """The kubeconfig's own install hint is part of the message."""
    plugin = Plugin("/nowhere/plugin", source="u", install_hint="brew install\n  plugin")
    with pytest.raises(
        ConfigError, match=r"^u\.exec\.command: /nowhere/plugin: No such file or directory \(brew"
    ):
        await ExecCredentials(plugin).headers()


async def test_client_certificate_of_a_plugin(make: Make, program: Program) -> None:
    """A new certificate makes a new TLS context, the same one does not."""
    ca = make_ca("ca")

    def answer(name: str) -> None:
        pair = sign(ca, name, usage="client")
        program.answer(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())

    answer("first")
    credentials = make()
    config = ConnectionConfig(
        "https://api", tls=TlsMaterial(source="s", authority=ca.certificate), credentials=credentials
    )
    without = config.ssl
    assert await config.headers() == {}
    first = config.ssl
    assert first is not without
    await config.headers(refresh=True)
    assert config.ssl is first
    answer("second")
    credentials._forced_at = float("-inf")
    await config.headers(refresh=True)
    assert config.ssl not in {first, without}


async def test_unusable_client_certificate_of_a_plugin(make: Make, program: Program) -> None:
    """A mismatched pair is an error; no request uses the old identity."""
    ca = make_ca("ca")
    program.answer(
        clientCertificateData=sign(ca, "a").certificate.decode(), clientKeyData=sign(ca, "b").key.decode()
    )
    config = ConnectionConfig("https://api", tls=TlsMaterial(source="s"), credentials=make())
    with pytest.raises(ConfigError, match=r"s: client-certificate: .*MISMATCH"):
        await config.headers()


async def test_from_a_kubeconfig(tmp_path: Path, program: Program) -> None:
    """A relative command is resolved in the kubeconfig's directory, and the cluster is passed if requested."""
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://api:1",
                    "tls-server-name": "n",
                    "extensions": [{"name": V1.replace("/v1", "/exec"), "extension": {"region": "r"}}],
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "exec": {
                        "apiVersion": V1,
                        "command": "./plugin",
                        "args": ["token"],
                        "env": [{"name": "EXTRA", "value": "v"}],
                        "provideClusterInfo": True,
                        "interactiveMode": "IfAvailable",
                    }
                },
            }
        ],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content))
    config = await kubeconfig.load(str(path))
    assert await config.headers() == bearer("one")
    (run,) = program.runs
    assert (run["args"], run["extra"]) == (["token"], "v")
    assert json.loads(run["info"])["spec"]["cluster"] == {
        "server": "https://api:1",
        "tls-server-name": "n",
        "config": {"region": "r"},
    }
    await config.close()
