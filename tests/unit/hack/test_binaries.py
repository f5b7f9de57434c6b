from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from hack.sandbox.builds import binaries, go_build, images, programs
from hack.sandbox.builds.binaries import Installed, usable
from hack.sandbox.builds.programs import CONTROL_PLANE, PROGRAMS, parse_version
from hack.sandbox.errors import SandboxError

TRIO = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def installed(version: tuple[int, int], *names: str) -> dict[str, Installed]:
    """Return programs of a user, all of one version."""
    return {name: Installed(Path("/usr/bin") / name, version) for name in names}


def script(path: Path, text: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for the test, and a PATH with only a shell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "cache" / "virtual-node"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Kubernetes v1.34.4", (1, 34)),
        ("Client Version: v1.31.0\nKustomize Version: v5.4.2", (1, 31)),
        ("etcd Version: 3.6.5\nGit SHA: a061450", (3, 6)),
        ("kwok version v0.7.0 go1.24.1 (linux/amd64)", (0, 7)),
        ("unknown flag: --version", None),
    ],
)
def test_versions_are_read_from_output(text, version):
    """The first complete version counts."""
    assert parse_version(text) == version


def test_a_complete_control_plane_of_the_user_is_used():
    """Three parts at one minor version, etcd and kubectl."""
    found = installed((1, 36), *TRIO, "kubectl") | installed((3, 5), "etcd")
    assert set(usable(found, CONTROL_PLANE)) == set(CONTROL_PLANE)


def test_an_apiserver_alone_is_not_mixed_with_newer_parts():
    """Envtest's etcd and kubectl are used, the apiserver is built with the rest."""
    found = installed((1, 36), "kube-apiserver", "kubectl") | installed((3, 5), "etcd")
    assert set(usable(found, CONTROL_PLANE)) == {"kubectl", "etcd"}


def test_an_apiserver_of_the_same_version_is_used_with_built_parts():
    """Envtest has no scheduler and no controller manager."""
    ours = parse_version(programs.KUBERNETES_VERSION)
    assert ours is not None
    found = installed(ours, "kube-apiserver")
    assert set(usable(found, TRIO)) == {"kube-apiserver"}


def test_programs_of_setup_envtest_are_found(cache, tmp_path, monkeypatch):
    """Its folder of the version that the project builds comes before the PATH; other versions there do not count."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    minor = programs.KUBERNETES_VERSION.rpartition(".")[0]
    for version in (f"{minor}.1", "1.29.0"):
        place = tmp_path / "kubebuilder-envtest" / "k8s" / f"{version}-linux-{images.architecture()}"
        place.mkdir(parents=True)
        script(place / "kubectl", "true")
    assert f"/{minor}.1-linux-" in str(binaries._place("kubectl"))


@pytest.mark.parametrize(
    ("compiled", "total", "seconds", "said"),
    [
        (0, 100, 5.0, "0 packages compiled"),
        (10, 0, 5.0, "10 packages compiled"),
        (50, 100, 30.0, "50 of 100 packages compiled, at most about 30 s left"),
        (10, 100, 60.0, "10 of 100 packages compiled, at most about 9 min left"),
    ],
)
def test_a_build_estimates_its_duration(compiled, total, seconds, said):
    """As soon as Go has counted the packages and the first one is compiled."""
    assert go_build.build_progress(compiled, total, seconds) == said


def test_parts_of_different_versions_are_not_used():
    """A scheduler newer than its apiserver would wait forever."""
    found = installed((1, 35), "kube-apiserver", "kube-controller-manager") | installed(
        (1, 36), "kube-scheduler"
    )
    assert usable(found, TRIO) == {}


def test_a_kubelet_is_required_only_for_a_real_node():
    found = installed((1, 36), *TRIO)
    assert set(usable(found, TRIO)) == set(TRIO)
    assert usable(found, [*TRIO, "kubelet"]) == {}


@pytest.mark.parametrize(("name", "version"), [("kubectl", (1, 35)), ("etcd", (3, 4))])
def test_too_old_programs_are_not_used(name, version):
    """One minor version before the oldest is ignored; the oldest itself is used."""
    assert usable(installed(version, name), [name]) == {}
    assert set(usable(installed((version[0], version[1] + 1), name), [name])) == {name}


async def test_kubebuilder_assets_come_before_path(cache, tmp_path, monkeypatch):
    """The folder that the variable names takes precedence over PATH, which is used without the variable."""
    assets = tmp_path / "assets"
    assets.mkdir()
    script(assets / "etcd", "echo etcd Version: 3.6.1")
    script(tmp_path / "bin" / "etcd", "echo etcd Version: 3.5.0")
    assert await binaries.ensure(["etcd"]) == {"etcd": tmp_path / "bin" / "etcd"}
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert await binaries.ensure(["etcd"]) == {"etcd": assets / "etcd"}


async def test_a_program_for_another_machine_is_skipped(cache, tmp_path):
    """One that cannot start is no error: the cached one is used."""
    broken = tmp_path / "bin" / "etcd"
    broken.write_bytes(b"\x7fELF no such machine")
    broken.chmod(0o755)
    kept = programs.home("etcd") / "etcd"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert await binaries.ensure(["etcd"]) == {"etcd": kept}


async def test_a_build_is_kept_and_not_repeated(cache, tmp_path):
    """Go's output is in the cache under the program's name."""
    script(
        tmp_path / "bin" / "go",
        'if [ "$1" = env ]; then echo go1.26.8; exit; fi\n'
        'if [ "$1" = list ]; then exit; fi\n'
        f'echo "$@" >> {tmp_path}/calls; echo "$CGO_ENABLED $GOFLAGS" >> {tmp_path}/calls\n'
        'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo program > "$2/server"; fi; shift; done',
    )
    said: list[str] = []
    first = await binaries.ensure(["etcd"], progress=said.append)
    assert first == {"etcd": programs.home("etcd") / "etcd"}
    assert first["etcd"].read_text() == "program\n"
    assert await binaries.ensure(["etcd"]) == first
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert calls[0].endswith("go.etcd.io/etcd/server/v3")
    assert calls[1] == "0 -mod=readonly -buildvcs=false"
    assert "building etcd" in said[0]
    assert str(cache) in said[0]


async def test_a_failed_build_is_one_line_with_the_log(cache, tmp_path):
    """Go's reason, and the path of the complete log; nothing half-built is kept."""
    script(
        tmp_path / "bin" / "go",
        'if [ "$1" = env ]; then echo go1.26.8; exit; fi\n'
        "echo k8s.io/api/core/v1; echo '# some/package'; echo 'a.go:3: undefined: x'; echo some/package; exit 1",
    )
    with pytest.raises(SandboxError) as caught:
        await binaries.ensure(["etcd"], progress=lambda _: None)
    log = programs.home("etcd") / "build.log"
    assert str(caught.value) == f"building etcd failed: a.go:3: undefined: x (log: {log})"
    assert [path.name for path in log.parent.iterdir()] == ["build.log"]


@pytest.mark.parametrize(
    ("on_path", "built", "found"),
    [
        ("v3.8.0", ["3", "4"], ""),
        ("v3.7.9", ["3", "4"], "4"),
        ("", ["3"], "3"),
        ("", [], "3"),
    ],
    ids=["on the PATH", "too old", "built before", "none"],
)
async def test_demo_builds_no_helm_but_helm_3(cache, monkeypatch, on_path, built, found):
    """Helm 4 takes several times as long, so it is only used if it is there."""
    on_the_path = cache.parents[1] / "bin"
    monkeypatch.setenv("PATH", str(on_the_path))
    if on_path:
        script(on_the_path / "helm", f"echo {on_path}")
    for major in built:
        kept = programs.home(f"helm{major}") / "helm"
        kept.parent.mkdir(parents=True)
        kept.touch()

    async def build(missing, *, progress):
        return {one.name: programs.home(module) / one.name for module, [one] in missing.items()}

    monkeypatch.setattr(go_build, "build_all", build)
    expected = programs.home(f"helm{found}") if found else on_the_path
    assert await binaries.helm(progress=lambda _: None) == expected / "helm"


@pytest.mark.parametrize(
    ("said", "fits"), [("go1.26", True), ("go1.27.3", True), ("go1.25.12", False), ("", False)]
)
async def test_only_a_go_that_can_build_kubernetes_fits(tmp_path, said, fits):
    """A release without a patch number counts, too."""
    script(tmp_path / "go", f"echo {said}")
    assert await go_build._go_fits(tmp_path / "go", (1, 26)) is fits


def test_gos_output_is_named_after_the_package():
    """The last element, or the one before it if that is a major version."""
    assert PROGRAMS["etcd"].output == "server"
    assert PROGRAMS["kube-apiserver"].output == "kube-apiserver"
    assert PROGRAMS["pause"].output == "pause"


def test_a_changed_pin_is_another_folder(tmp_path, monkeypatch):
    """A changed go.mod or go.sum never finds programs of the old one."""
    monkeypatch.setattr(programs, "TOOLS", tmp_path)
    (tmp_path / "kwok").mkdir()
    (tmp_path / "kwok" / "go.mod").write_text("module a")
    before = programs.home("kwok")
    assert programs.home("kwok") == before
    (tmp_path / "kwok" / "go.mod").write_text("module b")
    assert programs.home("kwok") != before


@pytest.mark.parametrize(
    ("directive", "required"), [("go 1.24.0", (1, 26)), ("go 1.27.0", (1, 27)), ("go 1.28", (1, 28))]
)
async def test_a_module_that_requires_a_newer_go_is_built_with_that(
    tmp_path, monkeypatch, directive, required
):
    """An older module is built with the oldest Go that can build Kubernetes."""
    monkeypatch.setattr(go_build, "TOOLS", tmp_path)
    monkeypatch.setattr(go_build, "cache_directory", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name in ("kubernetes", "tool"):
        (tmp_path / name).mkdir()
    (tmp_path / "tool" / "go.mod").write_text(f"module a\n\n{directive}\n")
    script(tmp_path / "go", "echo go1.26.0")
    (tmp_path / "new").touch()
    installed = []

    async def install(place, oldest):
        installed.append(oldest)
        return tmp_path / "new", ""

    monkeypatch.setattr(go_build, "_install_go", install)
    go = await go_build.go_command(lambda _: None, "tool")
    newer = ".".join(map(str, required))
    assert (go, installed) == ((tmp_path / "go", []) if required == (1, 26) else (tmp_path / "new", [newer]))


def test_every_module_pins_its_version_of_go():
    for module in {program.module for program in PROGRAMS.values()}:
        assert re.search(r"^go 1\.\d+", (programs.TOOLS / module / "go.mod").read_text(), re.MULTILINE), (
            module
        )


def test_an_apiserver_of_another_version_is_built_from_its_own_module():
    """It reports that version, and an installed default one is not used for it."""
    for minor, version in programs.OTHER_KUBERNETES.items():
        name = programs.apiserver(minor)
        program = PROGRAMS[name]
        pinned = (programs.TOOLS / program.module / "go.mod").read_text()
        assert f"k8s.io/kubernetes v{version}" in pinned
        assert f"gitVersion=v{version} " in go_build._linker_flags(
            programs.kubernetes_version(program.module)
        )
        assert usable(installed((1, int(minor[2:])), name), [name]) == {}
    assert programs.apiserver(programs.KUBERNETES_VERSION.rpartition(".")[0]) == "kube-apiserver"
    with pytest.raises(SandboxError, match=r"no Kubernetes 1\.30 here; there is 1\.34, 1\.35, 1\.36, 1\.37"):
        programs.apiserver("1.30")
