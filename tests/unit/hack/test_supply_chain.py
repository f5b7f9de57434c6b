"""The image's sources are pinned, and its bill of materials is complete."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from hack.image import lock, python_packages, sbom
from hack.image.commands import BuildError
from hack.image.python_packages import BACKEND, CONSTRAINTS, LIBRARIES, SITE, SOURCE, project
from tests.thorough import only_thorough, some

HASH = "a" * 64


def _declared(lock_file: Path) -> list[str]:
    whole = project()
    found: dict[Path, list[str]] = {
        LIBRARIES: whole["project"]["dependencies"],
        BACKEND: whole["build-system"]["requires"],
        CONSTRAINTS: [
            one for group in ("dev", "docs", "release") for one in whole["dependency-groups"][group]
        ],
    }
    return found[lock_file]


@pytest.mark.parametrize("file", [LIBRARIES, BACKEND], ids=lambda file: file.name)
def test_every_locked_library_has_a_hash(file):
    """An entry without one would be refused by pip only when an image is built."""
    for entry in file.read_text(encoding="utf-8").replace("\\\n", "").splitlines()[1:]:
        assert re.fullmatch(r"[a-z0-9-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", entry), entry


@pytest.mark.parametrize("file", [LIBRARIES, BACKEND, CONSTRAINTS], ids=lambda file: file.name)
def test_locked_versions_match_the_declared_dependencies(file):
    """A new dependency or range needs a new lock."""
    pins = lock.pins(file.read_text(encoding="utf-8"))
    for requirement in map(Requirement, _declared(file)):
        assert requirement.specifier.contains(pins[requirement.name]), (
            f"python -m hack.image.lock: {requirement}"
        )


def test_tests_run_with_the_libraries_of_the_image():
    """In the same versions; a new version on PyPI does not change the result of a test."""
    text = "".join(file.read_text(encoding="utf-8") for file in (LIBRARIES, BACKEND))
    assert lock.pins(text).items() <= lock.pins(CONSTRAINTS.read_text(encoding="utf-8")).items()


def test_compiled_libraries_are_locked_for_every_architecture():
    """One hash for each machine; a pure wheel is the same for all."""
    text = LIBRARIES.read_text(encoding="utf-8")
    for name in ("aiohttp", "cffi", "cryptography", "msgspec", "pyyaml"):
        (entry,) = re.findall(rf"^{name}==.*?(?=^[a-z]|\Z)", text, re.MULTILINE | re.DOTALL)
        assert entry.count("--hash") == len(lock.MACHINES), name


def test_docker_bases_are_pinned_by_digest():
    """A tag can be moved; a digest cannot."""
    text = (SOURCE / "Dockerfile").read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        named = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base)
        assert named == "scratch" or re.search(r"@sha256:[0-9a-f]{64}$", named), base


def test_docker_gets_every_package_of_the_project():
    """Dockerfile copies all that the wheel has, and .dockerignore does not leave it out."""
    dockerfile = (SOURCE / "Dockerfile").read_text(encoding="utf-8")
    copied = set(re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    sent = set(re.findall(r"^!(\S+)", (SOURCE / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE))
    assert names == sent
    assert names >= set(project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def test_a_module_that_is_run_defines_all_before():
    """Docker runs ``hack.image.rootfs``: a function after its last lines would not exist yet."""
    for file in sorted((SOURCE / "hack").rglob("*.py")):
        _, guard, rest = file.read_text(encoding="utf-8").partition('\nif __name__ == "__main__":\n')
        if guard:
            assert not re.search(r"^\S", rest, re.MULTILINE), file


def _report(name: str, version: str, *, digest: str = HASH) -> dict[str, Any]:
    hashes = {"sha256": digest} if digest else {}
    return {
        "install": [
            {
                "metadata": {"name": name, "version": version},
                "download_info": {"archive_info": {"hashes": hashes}},
            }
        ]
    }


def test_lock_gathers_the_hashes_of_all_machines():
    """A wheel for each architecture, under the name that PyPI compares."""
    found = lock.hashes([_report("My_Lib", "1.0"), _report("my-lib", "1.0", digest="b" * 64)])
    text = lock.render(found)
    assert text.splitlines()[1:] == [
        "my-lib==1.0 \\",
        f"    --hash=sha256:{HASH} \\",
        f"    --hash=sha256:{'b' * 64}",
    ]
    assert lock.pins(text) == {"my-lib": "1.0"}


@pytest.mark.parametrize(
    ("second", "message"),
    [(_report("a", "2.0"), "1.0 for one machine and 2.0"), (_report("a", "1.0", digest=""), "no SHA-256")],
    ids=["versions differ", "no hash"],
)
def test_lock_refuses_libraries_that_cannot_be_pinned(second, message):
    with pytest.raises(BuildError, match=message):
        lock.hashes([_report("a", "1.0"), second])


@pytest.mark.parametrize("is_right", some([False, True], 1))
def test_wheel_of_another_hash_is_not_installed(is_right, tmp_path, monkeypatch):
    """A package index may serve another file than the locked one."""
    wheel = tmp_path / "evil-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("evil.py", "")
        made.writestr("evil-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        made.writestr(
            "evil-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr("evil-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if is_right else HASH
    locked = tmp_path / "libraries.txt"
    locked.write_text(lock.render({"evil": ("1.0", [f"sha256:{digest}"])}), encoding="utf-8")
    monkeypatch.setattr(python_packages, "LIBRARIES", locked)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    root = tmp_path / "root"
    if is_right:
        python_packages.install_dependencies(root)
    else:
        with pytest.raises(BuildError, match="pip"):
            python_packages.install_dependencies(root)
    assert (root / SITE / "evil.py").exists() == is_right


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The files of an image that the bill of materials is read from."""
    for name, text in {
        f"{sbom.DEBIAN}/libssl3": "Package: libssl3\nSource: openssl\nVersion: 3.0.1-1~deb12u2+b1\n"
        "Architecture: amd64\nDescription: Secure Sockets Layer toolkit\n shared libraries\n",
        f"{sbom.DEBIAN}/zlib1g": "Package: zlib1g\nSource: zlib (1:1.2)\nVersion: 1:1.2.13\nArchitecture: amd64\n",
        f"{SITE}/six-1.0.dist-info/METADATA": "Name: six\nVersion: 1.0\nLicense-Expression: MIT\nSummary: S\n\nText",
        f"{SITE}/My_Lib-2.dist-info/METADATA": "Name: My_Lib\nVersion: 2\nLicense: whatever it says\n",
        f"{SITE}/virtual_node-0.1.dist-info/METADATA": "Name: virtual-node\nVersion: 0.1\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


def _bill(files: Path) -> str:
    found = sbom.components([files], site=SITE, release="12", besides="virtual_node")
    return sbom.render(found, name="virtual-node", version="0.1")


@only_thorough
def test_sbom_is_valid_cyclonedx(files):
    """By the schema of its version; unknown members are errors."""
    # Importing it takes a second.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(_bill(files)) is None


def test_sbom_names_debian_packages_and_libraries(files):
    """By package URLs, as in vulnerability databases; the project itself is the subject."""
    bill = json.loads(_bill(files))
    assert [one["purl"] for one in bill["components"]] == [
        "pkg:deb/debian/libssl3@3.0.1-1~deb12u2%2Bb1?arch=amd64&distro=debian-12&upstream=openssl",
        "pkg:deb/debian/zlib1g@1%3A1.2.13?arch=amd64&distro=debian-12&upstream=zlib",
        "pkg:pypi/my-lib@2",
        "pkg:pypi/six@1.0",
    ]
    assert bill["metadata"]["component"]["name"] == "virtual-node"
    assert bill["components"][0]["description"] == "Secure Sockets Layer toolkit"
    assert bill["components"][3]["licenses"] == [{"expression": "MIT"}]


def test_sbom_of_the_same_files_is_the_same_text(files):
    """So the image is reproducible."""
    assert _bill(files) == _bill(files)


def test_sbom_has_another_serial_number_for_other_files(files):
    before = json.loads(_bill(files))["serialNumber"]
    (files / sbom.DEBIAN / "zlib1g").unlink()
    assert json.loads(_bill(files))["serialNumber"] != before


def test_security_policy_links_exist():
    text = (SOURCE / "SECURITY.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (SOURCE / target).exists(), target
