"""The image's files: Debian's Python, what we depend on, and ourselves. No shell, no package manager, no compiler.

``Dockerfile`` runs this inside ``debian:12-slim`` and ``hack.image.build`` runs it on a Debian 12 machine: the same
files either way. Only the standard library is used, because the build stage has nothing else.

::

    ROOT/base   /usr/bin/python3.11, libraries, /etc/ssl/certs, dist-packages of others      changes seldom
    ROOT/app    /usr/bin/virtual-node*, dist-packages of ours                                changes daily

Debian's own Python rather than a bigger image: its security updates are a rebuild away, and what is not in the image
has no vulnerabilities.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = "python3.11"
RELEASE = "12"
USER = 65532
"""Who we run as: ``nonroot``, the number that distroless images use."""
SITE = f"usr/local/lib/{PYTHON}/dist-packages"
PACKAGES = (
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libuuid1",
    "python3.11-minimal",
    "zlib1g",
)
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
_UNUSED = (
    # Debian's: translations of text, and of character sets that nobody sends us.
    "usr/share/doc/*/[!c]*",
    "usr/share/doc/*/changelog*",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/binfmts",
    "usr/share/applications",
    "usr/share/pixmaps",
    "usr/share/perl5",
    "usr/share/debconf",
    "usr/sbin",
    "sbin/ldconfig",
    "usr/lib/*/gconv",
    "usr/lib/*/audit",
    "usr/lib/locale",
    "usr/bin/[!p]*",
    "usr/bin/pdb*",
    "usr/bin/py*versions",
    "etc/binfmt.d",
    "etc/bindresvport.blacklist",
    # Python's: what builds, draws and tests.
    *(
        f"usr/lib/{PYTHON}/{name}"
        for name in ("distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo")
    ),
    # Others': what their authors ship for themselves.
    f"{SITE}/bin",
    f"{SITE}/*/tests",
    f"{SITE}/*/test",
    f"{SITE}/*/*.pyx",
    f"{SITE}/*/*.c",
)


class BuildError(Exception):
    """Something is missing, or a command failed; quotes what it said."""


def base(root: Path, *, work: Path) -> None:
    """Fill a folder with Python and the libraries that the project depends on.

    Args:
        root: the folder, empty or absent.
        work: where packages are downloaded to.

    Raises:
        BuildError: this is not the Debian the recipe is for, or a package cannot be had.
    """
    _check_machine()
    root.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    for directory in ("usr/bin", "usr/lib", "usr/lib64", "etc", "home/nonroot"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    # As Debian itself lays it out ("merged /usr"); its packages are unpacked through these links.
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "sbin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    _debian(root, work)
    _accounts(root)
    _certificates(root)
    requirements = _project()["project"]["dependencies"]
    _pip(
        "install",
        "--target",
        str(root / SITE),
        "--constraint",
        str(CONSTRAINTS),
        *_wheels_for(),
        *requirements,
    )
    _prune(root)
    _compile(root, [f"/usr/lib/{PYTHON}", f"/{SITE}"], optional=(f"/{SITE}/kubernetes_asyncio",))


def application(root: Path, *, base_root: Path) -> None:
    """Fill a folder with the project itself: packages, their metadata, and a program per console script.

    Args:
        root: the folder, empty or absent.
        base_root: made by ``base``; its Python compiles.

    Raises:
        BuildError: the project cannot be built.
    """
    site = root / SITE
    site.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        # Without isolation where the build backend is at hand, so that a test needs no network.
        offline = ["--no-build-isolation", "--no-index"] if _importable("hatchling") else []
        _pip("wheel", "--no-deps", *offline, "--wheel-dir", work, str(SOURCE))
        (wheel,) = Path(work).glob("*.whl")
        _pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    shutil.rmtree(site / "bin", ignore_errors=True)
    # pip notes the folder it was built from; the image must not depend on where that was.
    for note in site.glob("*.dist-info/direct_url.json"):
        note.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        record.unlink()
    programs = root / "usr/bin"
    programs.mkdir(parents=True)
    for name, target in _project()["project"]["scripts"].items():
        module, _, function = target.partition(":")
        program = programs / name
        program.write_text(
            f"#!/usr/bin/{PYTHON}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
    shutil.copytree(site, base_root / "tmp/app")
    try:
        _compile(base_root, ["/tmp/app"], strip="/tmp/app", prepend=f"/{SITE}")  # noqa: S108 - of the image's root
        shutil.rmtree(site)
        shutil.copytree(base_root / "tmp/app", site)
    finally:
        shutil.rmtree(base_root / "tmp/app")


def _check_machine() -> None:
    release = Path("/etc/os-release")
    said = release.read_text(encoding="utf-8") if release.exists() else ""
    if f'VERSION_ID="{RELEASE}"' not in said or "ID=debian" not in said:
        raise BuildError(
            f"the image is made of Debian {RELEASE}'s packages and this machine is something else; "
            "build it with Docker or Buildah: docker build ."
        )
    if os.geteuid() != 0:
        raise BuildError("unpacking the image's files needs root; or build it with Docker or Buildah")


def _debian(root: Path, work: Path) -> None:
    try:
        _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *PACKAGES, cwd=work)
    except BuildError:
        # A machine that never asked has no lists, an old one has lists of versions that are gone.
        _run("apt-get", "update", "-qq")
        _run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *PACKAGES, cwd=work)
    for package in sorted(work.glob("*.deb")):
        unpacked = work / "unpacked"
        _run("dpkg-deb", "-x", str(package), str(unpacked))
        # Through the links, which dpkg-deb would replace by folders.
        for top in unpacked.iterdir():
            target = root / ("usr/" + top.name if top.name in ("bin", "lib", "lib64") else top.name)
            shutil.copytree(top, target, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(unpacked)


def _accounts(root: Path) -> None:
    users = (
        "root:x:0:0:root:/root:/sbin/nologin",
        f"nonroot:x:{USER}:{USER}:nonroot:/home/nonroot:/sbin/nologin",
    )
    (root / "etc/passwd").write_text("\n".join([*users, ""]), encoding="utf-8")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n", encoding="utf-8")
    # Names of the cluster are asked for as /etc/hosts and resolv.conf say, which the kubelet writes.
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n", encoding="utf-8")
    (root / "etc/os-release").write_text(
        f'PRETTY_NAME="virtual-node on Debian {RELEASE}"\nID=debian\nVERSION_ID="{RELEASE}"\n',
        encoding="utf-8",
    )


def _certificates(root: Path) -> None:
    """One file of the public CAs, for identity providers; ca-certificates makes it when it is installed."""
    folder = root / "usr/share/ca-certificates/mozilla"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in sorted(folder.glob("*.crt"))), encoding="utf-8")
    (root / "usr/lib/ssl").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")
    shutil.rmtree(root / "usr/share/ca-certificates")


def _prune(root: Path) -> None:
    for pattern in _UNUSED:
        for path in sorted(root.glob(pattern)):
            if path.name == "copyright":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # reached through a link already
    for cache in sorted(root.rglob("__pycache__")):
        shutil.rmtree(cache)


def _compile(
    root: Path, folders: Sequence[str], *, strip: str = "", prepend: str = "", optional: Sequence[str] = ()
) -> None:
    """Bytecode for every module, by the image's own Python: which proves that it runs, too.

    ``unchecked-hash``: the files of an image do not change, so nobody need look at their times.
    """
    places = [f"-s{strip}", f"-p{prepend}"] if strip else []
    skip = ["-x", "|".join(optional)] if optional else []
    argv = [f"/usr/bin/{PYTHON}", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    _run("chroot", str(root), *argv, *places, *skip, *folders)


def _wheels_for() -> list[str]:
    """Wheels for the image's Python, whichever Python runs pip."""
    machine = os.uname().machine
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux_2_5_{machine}"]
    flags = [
        "--only-binary=:all:",
        "--implementation",
        "cp",
        "--python-version",
        PYTHON.removeprefix("python"),
    ]
    return [*flags, *(word for platform in platforms for word in ("--platform", platform))]


def _project() -> dict[str, Any]:
    return tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))


def _importable(module: str) -> bool:
    return (
        subprocess.run(
            [sys.executable, "-c", f"import {module}"], check=False, capture_output=True
        ).returncode
        == 0
    )


def _pip(command: str, *arguments: str) -> None:
    _run(
        sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", command,
        "--no-compile" if command == "install" else "--quiet", "--root-user-action=ignore"
        if command == "install" else "--quiet", *arguments,
    )  # fmt: skip


def _run(*argv: str, cwd: Path | None = None) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=cwd, env=_environment())
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{' '.join(argv[:4])} …: {words[-1] if words else 'failed'}")


def _environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def main(argv: Sequence[str] | None = None) -> int:
    """Fill ``ROOT/base`` and ``ROOT/app``; what the Dockerfile's build stage runs."""
    parser = argparse.ArgumentParser(prog="python3 -m hack.image.rootfs", description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, help="folder to make")
    root: Path = parser.parse_args(argv).root
    try:
        base(root / "base", work=root / "packages")
        application(root / "app", base_root=root / "base")
    except BuildError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root / "packages", ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
