"""Which ClusterProfiles become lower clusters: nothing in one of them runs a command or stops another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.config import ClusterProfiles
from clusterset.profiles import EnvVar, ExecConfig, Provider, load_providers, select
from controller_runtime.auth import kubeconfig_file
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object, decode_object

SETTINGS = ClusterProfiles(namespace="fleet", providers_file="unused")
PROVIDERS = [
    Provider(name="first", exec_config=ExecConfig(command="/bin/first", args=["-v"], env=[EnvVar(name="A")])),
    Provider(name="second", exec_config=ExecConfig(command="/bin/second", provide_cluster_info=True)),
]
SERVER = {"server": "https://10.0.0.1:6443"}
EXEC = "client.authentication.k8s.io/exec"


def profile(name: str, status: Any) -> Object:
    """Return a ClusterProfile with this status, or with the status in a JSON text."""
    text = status if isinstance(status, str) else json.dumps(status)
    return decode_object(
        f'{{"metadata":{{"name":{json.dumps(name)},"namespace":"fleet"}},"status":{text}}}'.encode()
    )


def access(cluster: Any, provider: str = "second") -> dict[str, Any]:
    """Return the status of a ClusterProfile with one access provider."""
    return {"accessProviders": [{"name": provider, "cluster": cluster}]}


def chosen(status: Any, **options: Any) -> dict[str, Any]:
    """Return the kubeconfig of a ClusterProfile that is used."""
    found = select([profile("a", status)], PROVIDERS, SETTINGS, **options)
    assert found.refused == {}
    whole: dict[str, Any] = json.loads(found.kubeconfigs["profile-a"])
    return whole


def test_a_kubeconfig_has_the_server_of_the_profile_and_the_plugin_of_the_provider():
    cluster = {
        **SERVER, "certificate-authority-data": "QQ==", "tls-server-name": "api", "disable-compression": True,
        "extensions": [{"name": "other", "extension": 1}, {"name": EXEC, "extension": {"clusterName": "x"}}],
    }  # fmt: skip
    whole = chosen(access(cluster))
    used = {**SERVER, "certificate-authority-data": "QQ==", "tls-server-name": "api"}
    extensions = [{"name": EXEC, "extension": {"clusterName": "x"}}]
    assert whole["clusters"] == [{"name": "profile-a", "cluster": {**used, "extensions": extensions}}]
    plugin = {
        "command": "/bin/second",
        "apiVersion": "client.authentication.k8s.io/v1",
        "provideClusterInfo": True,
    }
    assert whole["users"] == [{"name": "second", "user": {"exec": plugin}}]


def test_the_first_known_provider_of_the_file_is_used():
    """The deprecated field counts, unless the current one has an entry of the same name."""
    entry = [{"name": name, "cluster": SERVER} for name in ("unknown", "second", "first")]
    assert chosen({"accessProviders": entry})["users"][0]["user"]["exec"]["command"] == "/bin/first"
    old = [{"name": "second", "cluster": {"server": "https://old"}}]
    assert chosen({"credentialProviders": old})["clusters"][0]["cluster"] == {"server": "https://old"}
    assert chosen({"credentialProviders": old, **access(SERVER)})["clusters"][0]["cluster"] == SERVER


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (None, "names no provider of clusterProfiles (configured: first, second)"),
        ([1], "names no provider"),
        ({"accessProviders": {"name": "first"}}, "names no provider"),
        ({"accessProviders": [1, {"name": 2}, {}]}, "names no provider"),
        (access("text"), "cluster: must be a mapping"),
        (access({}), "cluster.server: '' is not an https URL"),
        (access({"server": 1}), "cluster.server: must be a string"),
        (access({"server": "http://10.0.0.1"}), "is not an https URL"),
        (access({"server": "https://[::1"}), "cluster.server: 'https://[::1' is not a URL"),
        (access({"server": "https://me:pw@host"}), "cluster.server: has a name in front of the host"),
        (access({"server": "https://a..b"}), "its host is not a host name"),
        (access({"server": "https://h/?q"}), "is not an http(s) URL of a server"),
        (access({**SERVER, "certificate-authority-data": "%"}), "certificate-authority-data: is not base64"),
        (access({**SERVER, "certificate-authority-data": "ü"}), "certificate-authority-data: is not base64"),
        (access({**SERVER, "certificate-authority": "/etc/passwd"}), "certificate-authority: is not accepted"),
        (access({**SERVER, "insecure-skip-tls-verify": True}), "insecure-skip-tls-verify: is not accepted"),
        (access({**SERVER, "insecure-skip-tls-verify": "yes"}), "insecure-skip-tls-verify: is not accepted"),
        (access({**SERVER, "extensions": [{"name": EXEC, "extension": "x" * 70_000}]}), "more than 65,536 bytes"),
        ('{"accessProviders":[{"name":"first","cluster":{"n":' + "9" * 10_000 + "}}]}", "status: cannot be read"),
        ('{"accessProviders":' + "[" * 900 + "]" * 900 + "}", "names no provider"),
    ],
)  # fmt: skip
def test_refuses_profiles_that_cannot_be_used(status: Any, why: str):
    """The valid ClusterProfile beside each of them is used."""
    found = select([profile("bad", status), profile("good", access(SERVER))], PROVIDERS, SETTINGS)
    assert list(found.kubeconfigs) == ["profile-good"]
    assert why in found.refused["fleet/bad"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("taken", "already has a lower cluster or virtual node with the name profile-taken"),
        ("a.b", "is not a DNS label"),
        ("../etc", "is not a DNS label"),
        ("x" * 45, "is not a DNS label of at most 52 characters"),
        ("new\n", "is not a DNS label"),
        ("", "is not a DNS label"),
    ],
)
def test_refuses_taken_and_invalid_names(name: str, why: str):
    found = select([profile(name, access(SERVER))], PROVIDERS, SETTINGS, taken={"profile-taken"})
    assert not found.kubeconfigs
    assert why in found.refused[f"fleet/{name}"]


def test_only_allowed_names_are_used_if_there_are_any():
    settings = ClusterProfiles(namespace="fleet", providers_file="unused", names=["b"], name_prefix="")
    found = select([profile(name, access(SERVER)) for name in "ab"], PROVIDERS, settings)
    assert (list(found.kubeconfigs), list(found.refused)) == (["b"], ["fleet/a"])


def test_the_number_of_clusters_is_limited():
    """The first by name are used, and those of the file count."""
    many = [profile(f"n{number:03}", access(SERVER)) for number in reversed(range(501))]
    found = select(many, PROVIDERS, SETTINGS, taken={"other"})
    assert len(found.kubeconfigs) == 499
    assert sorted(found.refused) == ["fleet/n499", "fleet/n500"]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["accessProviders", "name", "cluster", "server", "extensions", "extension", "exec", "command"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON, st.text(max_size=60))
def test_no_content_raises_an_error_or_chooses_a_command(anything: Any, cluster: Any, name: str):
    """A kubeconfig that is written can be read, and has the command of the file."""
    settled = {**SERVER, **cluster} if isinstance(cluster, dict) else cluster
    for status in (anything, access(anything), access(settled)):
        found = select(
            [profile(name, json.dumps(status)), profile("good", access(SERVER))], PROVIDERS, SETTINGS
        )
        assert "profile-good" in found.kubeconfigs
        for content in found.kubeconfigs.values():
            (user,) = json.loads(content)["users"]
            assert set(user["user"]) == {"exec"}
            assert user["user"]["exec"]["command"] in {"/bin/first", "/bin/second"}


def test_a_written_kubeconfig_can_be_read(tmp_path: Path):
    content = select([profile("a", access(SERVER))], PROVIDERS, SETTINGS).kubeconfigs["profile-a"]
    (tmp_path / "k").write_bytes(content)
    context = kubeconfig_file.read([str(tmp_path / "k")], must_exist=True)
    assert context is not None
    plugin = context.user.section("exec")
    assert plugin is not None
    assert plugin.text("command") == "/bin/second"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[", "providersFile: "),
        ("[]", "Expected `object`"),
        ("providers: [{}]", "providers[0]: Object missing required field `name`"),
        ("providers: [{name: a, execConfig: {command: x, shell: y}}]", "unknown field `shell`"),
        ("providers: [{name: a, execConfig: {command: ''}}]", "providers[0].execConfig.command: is empty"),
        ("providers: [{name: a, execConfig: {command: x, apiVersion: v9}}]", "apiVersion: 'v9' is not supported"),
        ("providers: [{name: a, execConfig: {command: x, interactiveMode: Always}}]", "interactiveMode"),
        ("providers: [{name: a, execConfig: {command: x}}, {name: a, execConfig: {command: y}}]", "'a' is there twice"),
        (
            "providers: [{name: a, execConfig: {command: x}, profileSourcedCLIArgsPolicy: Append}]",
            "profileSourcedCLIArgsPolicy",
        ),
    ],
)  # fmt: skip
def test_refuses_invalid_files_of_providers(tmp_path: Path, text: str, why: str):
    file = tmp_path / "providers.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"clusterProfiles\.providersFile") as caught:
        load_providers(str(file))
    assert why in str(caught.value)


def test_commands_are_relative_to_the_file(tmp_path: Path):
    """As in the inventory's own library, empty lists may be null."""
    file = tmp_path / "providers.json"
    plugins = [
        {"name": command, "execConfig": {"command": command, "args": None, "env": None}}
        for command in ("./bin/x", "aws", "/abs")
    ]
    file.write_text(json.dumps({"providers": plugins}), encoding="utf-8")
    assert [one.exec_config.command for one in load_providers(str(file))] == [
        str(tmp_path / "bin/x"),
        "aws",
        "/abs",
    ]
