"""Workflows name pinned actions and commands that exist; the files of a release have the form that their readers expect."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shlex
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.image import archive, build
from hack.image.commands import BuildError
from hack.image.python_packages import SOURCE
from hack.release import __main__ as release
from hack.release import changelog, krew, plugin

WORKFLOWS = sorted((SOURCE / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((SOURCE / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
ON_THE_RUNNER = {"apt-get", "cosign", "docker", "gh"}
"""Programs of a runner, or of a step before."""
MANY_RIGHTS = {"publish", "pypi"}


def _jobs(file: Path) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return jobs


JOBS = [(file, name) for file in WORKFLOWS for name in _jobs(file)]
_each_job = pytest.mark.parametrize(("file", "name"), JOBS, ids=[name for _, name in JOBS])


def test_actions_are_pinned_by_commit():
    """With the version in a comment, which dependabot updates; one commit for each action."""
    lines = [line for file in WORKFLOWS for line in file.read_text(encoding="utf-8").splitlines()]
    used = {line.partition("uses: ")[2] for line in lines if "uses: " in line}
    remote = {one for one in used if not one.startswith("./")}
    for one in remote:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one), one
    assert len({one.partition("@")[0] for one in remote}) == len(remote)
    assert all((SOURCE / one).is_file() for one in used - remote)


@_each_job
def test_a_job_has_few_rights(file, name):
    """A workflow has none, and each job its own; only jobs without code of PyPI can write."""
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["permissions"] == {}
    job = _jobs(file)[name]
    if name in MANY_RIGHTS:
        assert job["environment"]
        assert not any("python" in step.get("run", "") for step in job["steps"])
    else:
        assert job["permissions"] == {"contents": "read"}


@_each_job
def test_steps_run_commands_that_exist(file, name):
    """So that each can be run on a developer's machine, too."""
    targets = re.findall(r"^([\w-]+):", (SOURCE / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for script in (step["run"] for step in _jobs(file)[name].get("steps", ()) if "run" in step):
        for command in re.split(r" && |\n", script.strip()):
            program, *arguments = shlex.split(command.partition(" <<< ")[0])
            if program == "make":
                assert set(arguments) <= set(targets), command
            elif program == ".venv/bin/python":
                flag, module, *more = arguments
                assert flag == "-m"
                assert find_spec(module), command
                assert more[0] in {"check", *release.STEPS}, command
            elif program == ".venv/bin/pip":
                assert "--constraint" in arguments, command
            elif "/" in program:
                assert (SOURCE / program).stat().st_mode & 0o111, command
            else:
                assert program in ON_THE_RUNNER, command


def test_containers_of_jobs_are_the_base_of_the_image():
    """In the same digest, so that Docker and the release unpack the same packages."""
    (base,) = re.findall(r"^FROM (debian\S+)", (SOURCE / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    found = [
        re.findall(r"(?:container|image): (debian\S+)", file.read_text(encoding="utf-8"))
        for file in WORKFLOWS
    ]
    assert {*itertools.chain(*found)} == {base}


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_issue_forms_are_complete(file):
    """GitHub ignores a form without one of these fields."""
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in {"textarea", "input"}
        assert field["attributes"]["label"]


def test_changelog_has_the_form_of_keep_a_changelog():
    """Versions in descending order, each with a link; known headings."""
    text = changelog.FILE.read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    numbers = [tuple(map(int, version.split("."))) for version in versions[1:]]
    assert numbers == sorted(numbers, reverse=True)
    assert set(versions) == set(re.findall(r"^\[(.+?)\]: https://", text, re.MULTILINE))
    headings = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A changelog with a section for this version."""
    file = tmp_path / "CHANGELOG.md"
    version = build.version()
    file.write_text(
        f"# Changelog\n\n## [Unreleased]\n\n## [{version}] - 2026-12-01\n\n### Added\n\n- A.\n\n"
        f"## [0.0.1] - 2026-01-01\n\n### Added\n\n- B.\n\n[{version}]: https://example.com\n"
    )
    monkeypatch.setattr(changelog, "FILE", file)
    return version


def test_notes_are_the_section_of_the_version(released):
    assert changelog.notes(released) == "### Added\n\n- A."
    assert changelog.notes("0.0.1") == "### Added\n\n- B."


def test_a_tag_must_have_the_version_of_all_files(released, capsys):
    """A release cannot be taken back, so a wrong tag fails before anything is published."""
    release.check(f"v{released}")
    assert capsys.readouterr().out == f"{released}\n"
    with pytest.raises(BuildError, match=r"tag is 9\.9\.9, and pyproject\.toml has"):
        release.check("v9.9.9")
    changelog.FILE.write_text("# Changelog\n\n## [Unreleased]\n")
    with pytest.raises(BuildError, match=r"CHANGELOG\.md has no section"):
        release.check(f"v{released}")


def test_krew_installs_the_archive_of_the_machine(tmp_path):
    """By its digest; a manifest without one of the architectures is not written."""
    with pytest.raises(BuildError, match=r"linux-amd64\.tar\.gz is missing"):
        krew.write(tmp_path)
    for machine in krew.ARCHITECTURES:
        (tmp_path / plugin.archive_name(machine)).write_text(machine)
    krew.write(tmp_path)
    manifest = yaml.safe_load((tmp_path / "virtual-node.yaml").read_text())
    assert re.fullmatch(r"v\d+\.\d+\.\d+", manifest["spec"]["version"])
    for machine, platform in zip(krew.ARCHITECTURES, manifest["spec"]["platforms"], strict=True):
        assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": machine}}
        assert platform["sha256"] == hashlib.sha256(machine.encode()).hexdigest()
        assert platform["uri"].endswith(f"/{manifest['spec']['version']}/{plugin.archive_name(machine)}")
        # krew installs under kubectl-NAME with underscores; another name is refused.
        assert platform["bin"] == "kubectl-" + manifest["metadata"]["name"].replace("-", "_")


def test_images_of_two_architectures_become_one_archive(tmp_path):
    """Its index has both, a layer that both have is in it once, and every blob has the digest of its name."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("a")
    layer = archive.layer(tmp_path / "files")
    parts = []
    for machine in ("amd64", "arm64"):
        config = archive.ImageConfig(machine, user="1", entrypoint=["a"], env=[])
        parts.append(tmp_path / f"{machine}.tar")
        archive.write(parts[-1], name="example.com/a:1", config=config, layers=[layer])
    digest = archive.join(parts, tmp_path / "both.tar", name="example.com/a:1")
    with tarfile.open(tmp_path / "both.tar") as opened:
        files = {one.name: file.read() for one in opened if (file := opened.extractfile(one)) is not None}
    for name, content in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    assert len(files) == 2 + 1 + 2 + 2 + 1
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["digest"] == digest
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "1"
    index = json.loads(files[f"blobs/sha256/{digest.removeprefix('sha256:')}"])
    assert [one["platform"]["architecture"] for one in index["manifests"]] == ["amd64", "arm64"]
    for one in index["manifests"]:
        assert f"blobs/sha256/{one['digest'].removeprefix('sha256:')}" in files
