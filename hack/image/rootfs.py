"""The image's files: Debian's Python, the dependencies and the project. No shell, no package manager, no compiler.

``Dockerfile`` runs this inside ``debian:12-slim`` and ``hack.image.build`` runs it on a Debian 12 machine:
the same files either way. Only the standard library is used, because the build stage has nothing else.

::

    ROOT/base   /usr/bin/python3.11, libraries, /etc/ssl/certs, dist-packages of dependencies   changes seldom
    ROOT/app    /usr/bin/virtual-node*, python3 (a link), dist-packages of the project                            changes daily

The image has Debian's own Python and few packages, because a rebuild then takes Debian's security updates and
fewer packages have fewer vulnerabilities.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hack.image import debian, sbom
from hack.image.commands import BuildError, run
from hack.image.python_packages import (
    PYTHON,
    SITE,
    compile_all,
    install_dependencies,
    install_project,
    project,
)

_UNUSED = (
    # Files of Debian packages, such as translations and conversions of character sets.
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
    "usr/lib/*/libmvec*",
    "usr/lib/locale",
    "usr/bin/[!p]*",
    "usr/bin/pdb*",
    "usr/bin/py*versions",
    "etc/binfmt.d",
    "etc/bindresvport.blacklist",
    # Files of Python: build tools, graphics and tests.
    *(
        f"usr/lib/{PYTHON}/{name}"
        for name in (
            "distutils",
            "ensurepip",
            "idlelib",
            "lib2to3",
            "pydoc_data",
            "test",
            "tkinter",
            "turtledemo",
        )
    ),
    # Files of Python packages: headers, tests, rich's languages and others that are not needed at run time.
    f"{SITE}/bin",
    f"{SITE}/*/tests",
    f"{SITE}/*/test",
    f"{SITE}/*/*.pyx",
    f"{SITE}/*/*.c",
    f"{SITE}/*/_testcapi*",
    f"{SITE}/*.md",
    f"{SITE}/*.dist-info/RECORD",  # lists removed files, and depends on the machine that built the image
    f"{SITE}/pygments/lexers/[!_]*",
)


def base(root: Path, *, work: Path) -> None:
    """Fill a folder with Python and the libraries that the project depends on.

    Args:
        root: the folder, empty or absent.
        work: where packages are downloaded to.

    Raises:
        BuildError: this is not the Debian release of the recipe, or a package cannot be downloaded.
    """
    debian.check_machine()
    root.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    debian.lay_out(root)
    debian.unpack(root, work=work)
    debian.write_accounts(root)
    debian.write_certificates(root)
    install_dependencies(root)
    remove_unused(root)
    # Wheels have debug symbols, 3 MB of the compressed image.
    run("strip", "--strip-unneeded", *map(str, sorted((root / SITE).rglob("*.so"))))
    compile_all(root, [f"/usr/lib/{PYTHON}", f"/{SITE}"], optional=(f"/{SITE}/kubernetes_asyncio",))


def application(root: Path, *, base_root: Path) -> None:
    """Fill a folder with the project itself: packages, their metadata, a program per console script, and the SBOM.

    Args:
        root: the folder, empty or absent.
        base_root: filled by ``base``; its Python compiles the modules.

    Raises:
        BuildError: the project cannot be built.
    """
    site = root / SITE
    site.mkdir(parents=True, exist_ok=True)
    install_project(site)
    shutil.rmtree(site / "bin", ignore_errors=True)
    # pip records the folder of the build, on which the image must not depend.
    for note in site.glob("*.dist-info/direct_url.json"):
        note.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        record.unlink()
    declared = project()["project"]
    bill = root / sbom.PLACE
    bill.parent.mkdir(parents=True)
    found = sbom.components([base_root, root], site=SITE, release=debian.RELEASE, besides=declared["name"])
    bill.write_text(sbom.render(found, name=declared["name"], version=declared["version"]), encoding="utf-8")
    programs = root / "usr/bin"
    programs.mkdir(parents=True)
    # The name that images of workers, and users of the library, expect.
    (programs / "python3").symlink_to(PYTHON)
    for name, target in declared["scripts"].items():
        module, _, function = target.partition(":")
        program = programs / name
        program.write_text(
            f"#!/usr/bin/{PYTHON}\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
    shutil.rmtree(base_root / "tmp/app", ignore_errors=True)  # of a build that was killed
    shutil.copytree(site, base_root / "tmp/app")
    try:
        compile_all(base_root, ["/tmp/app"], strip="/tmp/app", prepend=f"/{SITE}")  # noqa: S108 - of the image's root
        shutil.rmtree(site)
        shutil.copytree(base_root / "tmp/app", site)
    finally:
        shutil.rmtree(base_root / "tmp/app")


def remove_unused(root: Path) -> None:
    """Delete the files that the image does not need; keep licences."""
    for pattern in _UNUSED:
        for path in sorted(root.glob(pattern)):
            if path.name == "copyright":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # already deleted through a link
    for cache in sorted(root.rglob("__pycache__")):
        shutil.rmtree(cache)


def main(argv: Sequence[str] | None = None) -> int:
    """Fill ``ROOT/base`` and ``ROOT/app``; the Dockerfile's build stage runs it."""
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
