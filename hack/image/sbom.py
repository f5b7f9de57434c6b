"""A software bill of materials of the image: CycloneDX 1.6, JSON. The same files always give the same text.

It is created from the files of the image: ``/var/lib/dpkg/status.d`` for Debian's packages (scanners of images
without a package manager read it, too), and each library's ``METADATA``.
Source: https://cyclonedx.org/docs/1.6/json/, https://github.com/package-url/purl-spec
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

DEBIAN = "var/lib/dpkg/status.d"
"""Folder in the image with the control fields of Debian's packages, one file each."""
PLACE = "usr/share/virtual-node/sbom.cdx.json"


def render(components: Iterable[dict[str, Any]], *, name: str, version: str) -> str:
    """Return the document.

    Args:
        components: contents of the image.
        name: name of the component that the document describes.
        version: version of that component.
    """
    found = sorted(components, key=lambda component: str(component["bom-ref"]))
    subject = {
        "type": "container",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
    }
    refs = [one["bom-ref"] for one in found]
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": subject},
        "components": found,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": refs}, *({"ref": ref} for ref in refs)],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return json.dumps({**body, "serialNumber": f"urn:uuid:{serial}"}, sort_keys=True, indent=1) + "\n"


def components(roots: Sequence[Path], *, site: str, release: str, besides: str) -> Iterator[dict[str, Any]]:
    """Return the contents of the image.

    Args:
        roots: the folders of its layers.
        site: where Python's libraries are in them.
        release: Debian's, such as ``12``.
        besides: the project's own library, which is the subject and therefore no component.
    """
    for root in roots:
        for control in sorted((root / DEBIAN).glob("*")):
            yield _debian(_fields(control), release)
        for metadata in sorted((root / site).glob("*.dist-info/METADATA")):
            fields = _fields(metadata)
            if _normal(fields["Name"]) != _normal(besides):
                yield _python(fields)


def _debian(fields: Message, release: str) -> dict[str, Any]:
    name, version = fields["Package"], fields["Version"]
    source = (fields["Source"] or name).split()[0]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}"
    purl += f"?arch={fields['Architecture']}&distro=debian-{release}"
    if source != name:
        # Vulnerabilities of Debian's packages are recorded under the source package's name.
        purl += f"&upstream={quote(source)}"
    return _component(name, version, purl, description=fields["Description"])


def _python(fields: Message) -> dict[str, Any]:
    name, version = fields["Name"], fields["Version"]
    purl = f"pkg:pypi/{_normal(name)}@{quote(version, safe='')}"
    return _component(
        name, version, purl, description=fields["Summary"], expression=fields["License-Expression"]
    )


def _component(
    name: str, version: str, purl: str, *, description: str | None, expression: str | None = None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if description:
        made["description"] = description.splitlines()[0].strip()
    if expression:
        made["licenses"] = [{"expression": expression}]
    return made


def _fields(file: Path) -> Message:
    return HeaderParser().parsestr(file.read_text(encoding="utf-8"))


def _normal(name: str) -> str:
    """Return a library's name in the form that PyPI compares."""
    return name.lower().replace("_", "-").replace(".", "-")
