"""Debian's part of the image: unpacked packages, accounts, and the public CAs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hack.image import sbom
from hack.image.commands import BuildError, run

RELEASE = "12"
USER = 65532
"""UID of the processes: ``nonroot``, the number that distroless images use."""
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


def check_machine() -> None:
    """Raise BuildError unless this machine, whose apt and strip are used, has the recipe's Debian and the user is root."""
    release = Path("/etc/os-release")
    said = release.read_text(encoding="utf-8") if release.exists() else ""
    if f'VERSION_ID="{RELEASE}"' not in said or "ID=debian" not in said:
        raise BuildError(
            f"the image is made of Debian {RELEASE}'s packages and this machine is something else; "
            "build it with Docker or Buildah: docker build ."
        )
    if os.geteuid() != 0:
        raise BuildError("unpacking the image's files needs root; or build it with Docker or Buildah")
    if shutil.which("strip") is None:
        raise BuildError("strip is missing: apt-get install binutils")


def lay_out(root: Path) -> None:
    """Create the folders of an empty root, as Debian does ("merged /usr")."""
    for directory in ("usr/bin", "usr/lib", "usr/lib64", "etc", "home/nonroot"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    # Packages are unpacked through these links.
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "sbin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def unpack(root: Path, *, work: Path) -> None:
    """Download the packages, unpack them, and record them (``hack.image.sbom``).

    Args:
        root: as ``lay_out`` made it.
        work: where packages are downloaded to.

    Raises:
        BuildError: a package cannot be downloaded.
    """
    try:
        run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *PACKAGES, cwd=work)
    except BuildError:
        # Without lists apt finds no packages, with old lists it asks for deleted versions.
        run("apt-get", "update", "-qq")
        run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *PACKAGES, cwd=work)
    notes = root / sbom.DEBIAN
    notes.mkdir(parents=True)
    for package in sorted(work.glob("*.deb")):
        control = run("dpkg-deb", "--field", str(package))
        (notes / package.name.partition("_")[0]).write_text(control, encoding="utf-8")
        unpacked = work / "unpacked"
        run("dpkg-deb", "-x", str(package), str(unpacked))
        # Copied into the links' targets, because dpkg-deb would replace the links by folders.
        for top in unpacked.iterdir():
            target = root / ("usr/" + top.name if top.name in ("bin", "lib", "lib64") else top.name)
            shutil.copytree(top, target, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(unpacked)


def write_accounts(root: Path) -> None:
    """Write accounts, name resolution and the release's description."""
    users = (
        "root:x:0:0:root:/root:/sbin/nologin",
        f"nonroot:x:{USER}:{USER}:nonroot:/home/nonroot:/sbin/nologin",
    )
    (root / "etc/passwd").write_text("\n".join([*users, ""]), encoding="utf-8")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n", encoding="utf-8")
    # Cluster names are resolved by /etc/hosts and resolv.conf, which the kubelet writes.
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n", encoding="utf-8")
    (root / "etc/os-release").write_text(
        f'PRETTY_NAME="virtual-node on Debian {RELEASE}"\nID=debian\nVERSION_ID="{RELEASE}"\n',
        encoding="utf-8",
    )


def write_certificates(root: Path) -> None:
    """Write the file of public CAs, to verify identity providers. Package ca-certificates would create it at installation."""
    folder = root / "usr/share/ca-certificates/mozilla"
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(path.read_text() for path in sorted(folder.glob("*.crt"))), encoding="utf-8")
    (root / "usr/lib/ssl").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")
    shutil.rmtree(root / "usr/share/ca-certificates")
