"""Credential plugins: real programs, run one at a time, before expiry and after a 401."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_runtime import exec_credentials, kubeconfig
from controller_runtime.client_tls import TlsMaterial
from controller_runtime.cluster_config import ClusterConfig
from controller_runtime.errors import ConfigError
from controller_runtime.exec_credentials import ExecCredentials, Plugin
from controller_runtime.key_pairs import make_ca, sign

V1 = "client.authentication.k8s.io/v1"


class Clock:
    """Wall time that tests move."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Now."""
        return self.moment

    def after(self, seconds: float) -> str:
        """A timestamp so many seconds from now."""
        return (self.moment + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def clock() -> Clock:
    """Wall time of the test."""
    return Clock()


class Program:
    """A plugin: prints ``answer.json`` and notes each run in ``runs``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "plugin"
        self.write(
            "import json, os, pathlib, sys\n"
            "here = pathlib.Path(__file__).parent\n"
            "note = {'args': sys.argv[1:], 'info': os.environ['KUBERNETES_EXEC_INFO'],"
            " 'extra': os.environ.get('EXTRA', '')}\n"
            "(here / 'runs').open('a').write(json.dumps(note) + '\\n')\n"
            "sys.stdout.write((here / 'answer.json').read_text())\n"
        )

    def write(self, body: str) -> None:
        """Another body."""
        self.path.write_text(f"#!{sys.executable}\n{body}")
        self.path.chmod(0o755)

    def answer(self, **status: Any) -> None:
        """What it prints from now on."""
        whole = {"kind": "ExecCredential", "apiVersion": V1, "status": status}
        (self.directory / "answer.json").write_text(json.dumps(whole))

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What each run noted."""
        file = self.directory / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A plugin that answers with the token ``one``."""
    made = Program(tmp_path)
    made.answer(token="one")
    return made


Make = Callable[..., ExecCredentials]


@pytest.fixture
def make(program: Program, clock: Clock) -> Make:
    """Makes credentials of the plugin."""

    def make(**fields: Any) -> ExecCredentials:
        return ExecCredentials(Plugin(str(program.path), source="users[name=u].user", **fields), now=clock)

    return make


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {token}"}


async def test_runs_once_for_all_callers(make: Make, program: Program) -> None:
    """A hundred requests at start run the plugin once, and later ones not at all."""
    credentials = make()
    found = await asyncio.gather(*(credentials.headers() for _ in range(100)))
    assert found == [bearer("one")] * 100
    assert await credentials.headers() == bearer("one")
    assert len(program.runs) == 1


async def test_input_of_the_plugin(make: Make, program: Program) -> None:
    """Arguments, environment and KUBERNETES_EXEC_INFO are what the specification says."""
    credentials = make(args=["a", "b c"], env={"EXTRA": "x"}, cluster={"server": "https://api"})
    await credentials.headers()
    (run,) = program.runs
    assert (run["args"], run["extra"]) == (["a", "b c"], "x")
    assert json.loads(run["info"]) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://api"}},
    }


async def test_without_expiry_it_is_good_until_refused(make: Make, program: Program, clock: Clock) -> None:
    """A credential without expirationTimestamp lives for ever, but for a 401."""
    credentials = make()
    await credentials.headers()
    clock.moment += timedelta(days=1000)
    program.answer(token="two")
    assert await credentials.headers() == bearer("one")
    assert await credentials.headers(refresh=True) == bearer("two")
    assert await credentials.headers() == bearer("two")


@pytest.mark.parametrize(("life", "early"), [(3600, 60), (100, 20)])
async def test_renewed_before_expiry(
    make: Make, program: Program, clock: Clock, life: int, early: int
) -> None:
    """A minute before it expires, or a fifth of a short life, the plugin runs again."""
    program.answer(token="one", expirationTimestamp=clock.after(life))
    credentials = make()
    await credentials.headers()
    program.answer(token="two", expirationTimestamp=clock.after(10 * life))
    clock.moment += timedelta(seconds=life - early - 1)
    assert await credentials.headers() == bearer("one")
    clock.moment += timedelta(seconds=1)
    assert await credentials.headers() == bearer("two")


async def test_early_renewal_may_fail(make: Make, program: Program, clock: Clock) -> None:
    """What is still good is used while the plugin fails, without running it for every request; then it is told."""
    program.answer(token="one", expirationTimestamp=clock.after(3600))
    credentials = make()
    await credentials.headers()
    program.write(
        "import pathlib, sys\n(pathlib.Path(__file__).parent / 'tried').open('a').write('x')\nsys.exit(1)"
    )
    clock.moment += timedelta(seconds=3590)
    for _ in range(5):
        assert await credentials.headers() == bearer("one")
    assert (program.directory / "tried").read_text() == "x"
    clock.moment += timedelta(seconds=10)
    credentials._ran_at = float("-inf")  # a second goes by
    with pytest.raises(ConfigError, match="exit code 1"):
        await credentials.headers()


async def test_refused_again_and_again_does_not_hammer_the_plugin(make: Make, program: Program) -> None:
    """A plugin that hands out what the server refuses runs once per few seconds, not once per request."""
    credentials = make()
    await credentials.headers()
    for _ in range(20):
        await credentials.headers(refresh=True)
    assert len(program.runs) == 2


async def test_expired_again_and_again_does_not_hammer_the_plugin(
    make: Make, program: Program, clock: Clock
) -> None:
    """A clock that is wrong makes each credential look expired; it is used, and the plugin is spared."""
    program.answer(token="one", expirationTimestamp=clock.after(-10))
    credentials = make()
    for _ in range(20):
        assert await credentials.headers() == bearer("one")
    assert len(program.runs) < 5


async def test_cancelled_caller_does_not_spoil_it_for_others(make: Make, program: Program) -> None:
    """The run goes on when the caller that began it goes away."""
    credentials = make()
    first, second = (asyncio.create_task(credentials.headers()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == bearer("one")
    assert first.cancelled()
    assert len(program.runs) == 1


async def test_close_ends_a_plugin_that_hangs(make: Make, program: Program) -> None:
    """A plugin that never answers is killed with its owner."""
    announced = program.directory / "pid"
    os.mkfifo(announced)
    program.write(
        "import os, pathlib, time\n"
        "(pathlib.Path(__file__).parent / 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    credentials = make()
    waiting = asyncio.create_task(credentials.headers())
    pid = await asyncio.to_thread(announced.read_text)
    await credentials.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not Path(f"/proc/{pid}").exists()
    await credentials.close()


async def test_plugin_that_hangs_is_given_up(
    make: Make, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin that never answers is an error after a while."""
    monkeypatch.setattr(exec_credentials, "_RUN_TIMEOUT", 0.3)
    program.write("import time\ntime.sleep(1000)\n")
    with pytest.raises(ConfigError, match=r"no answer in 0\.3 s"):
        await make().headers()


async def test_chatty_plugin(make: Make, program: Program) -> None:
    """A megabyte of complaints on stderr does not block a plugin, and its end is what the error tells."""
    program.write("import sys\nsys.stderr.write('x' * 2**20 + ' out of\\nluck')\nsys.exit(3)")
    with pytest.raises(ConfigError, match=r"exit code 3: x+ out of luck$") as caught:
        await make().headers()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("", "its output is no ExecCredential"),
        ("hello", "its output is no ExecCredential"),
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
            "come together or not at all",
        ),
        (
            json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "a\nb"}}),
            "its token is no token",
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
            "its output is no ExecCredential: .*expirationTimestamp",
        ),
    ],
)
async def test_bad_output(make: Make, program: Program, output: str, message: str) -> None:
    """Output that is no credential is an error that names user, plugin and problem, on one line."""
    (program.directory / "answer.json").write_text(output)
    with pytest.raises(ConfigError, match=message) as caught:
        await make().headers()
    assert str(caught.value).startswith(f"users[name=u].user.exec: {program.path}: ")
    assert "\n" not in str(caught.value)


async def test_missing_plugin_gives_the_hint() -> None:
    """A plugin that is not installed: the kubeconfig's own install hint is part of the message."""
    plugin = Plugin("/nowhere/plugin", source="u", install_hint="brew install\n  plugin")
    with pytest.raises(
        ConfigError, match=r"^u\.exec\.command: /nowhere/plugin: No such file or directory \(brew"
    ):
        await ExecCredentials(plugin).headers()


async def test_client_certificate_of_a_plugin(make: Make, program: Program) -> None:
    """A plugin's client certificate goes into a new TLS context, the same one again does not."""
    ca = make_ca("ca")

    def answer(name: str) -> None:
        pair = sign(ca, name, usage="client")
        program.answer(clientCertificateData=pair.certificate.decode(), clientKeyData=pair.key.decode())

    answer("first")
    credentials = make()
    config = ClusterConfig(
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
    """A pair that does not match is an error; nothing is sent under the old identity in silence."""
    ca = make_ca("ca")
    program.answer(
        clientCertificateData=sign(ca, "a").certificate.decode(), clientKeyData=sign(ca, "b").key.decode()
    )
    config = ClusterConfig("https://api", tls=TlsMaterial(source="s"), credentials=make())
    with pytest.raises(ConfigError, match=r"s: client-certificate: .*MISMATCH"):
        await config.headers()


async def test_from_a_kubeconfig(tmp_path: Path, program: Program) -> None:
    """A relative command is taken from the kubeconfig's directory, and the cluster is handed over if asked for."""
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
