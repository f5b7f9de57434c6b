"""The images that the e2e suite uses, made on this machine and tagged with the names that the suite expects.

The original images are built on Alpine. These contain the same programs (agnhost and others are built from
the same sources) on busybox, with programs of this machine such as curl, dig and bash. Images that are only used as
web servers contain busybox' httpd instead. Images of cloud providers, CSI drivers and similar are not made: tests
that need them fail directly and through the virtual node, so they do not count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller_runtime.tls.key_pairs import self_signed
from hack.sandbox.builds.images import Image

_BUSYBOX = Path("/bin/busybox")
_TOOLS = ("curl", "dig", "bash", "ss", "ip", "nc", "iperf", "getent")
_LIBRARY = re.compile(r"(/\S+) \(0x")


def made_images(wanted: Sequence[str], *, binaries: Mapping[str, Path]) -> list[Image]:
    """Return every image of the list that can be made here.

    Args:
        wanted: full names, as ``e2e.test --list-images`` prints them.
        binaries: paths of agnhost, nonewprivs and pause.
    """
    tags: dict[str, list[str]] = {}
    for name in wanted:
        if not name.startswith("invalid.") and "authenticated" not in name:
            tags.setdefault(name.rpartition(":")[0].rpartition("/")[2], []).append(name)
    shell = _shell()
    tools = {name: path for tool in _TOOLS for name, path in host_program(tool).items()}
    pair = self_signed("localhost", hosts=["localhost"])
    agnhost = Image(
        tags=tags.get("agnhost", []),
        files={"bin/busybox": _BUSYBOX, "agnhost": binaries["agnhost"], **tools},
        texts={"localhost.crt": pair.certificate.decode(), "localhost.key": pair.key.decode()},
        links={
            **{name: target for name, target in shell.items() if name.removeprefix("bin/") not in _TOOLS},
            # Not busybox: its sh prefers its own nc, which has few options, to the nc on the PATH.
            "bin/sh": "bash",
            "agnhost-2": "agnhost",
            "usr/local/bin/iperf": "/usr/bin/iperf",
        },
        modes={"uploads": 0o755},
        entrypoint=("/agnhost",),
        command=("pause",),
        accounts={"user-defined-in-image": 1000},
        groups={"group-defined-in-image": (50000, ("user-defined-in-image",))},
    )
    # Bash is the shell because Debian's busybox drops variables such as ``data-1`` that are no valid shell names.
    busybox = Image(
        tags=tags.get("busybox", []),
        files={"bin/busybox": _BUSYBOX, **host_program("bash")},
        links={**{name: target for name, target in shell.items() if name != "bin/bash"}, "bin/sh": "bash"},
        command=("sh",),
    )
    found = [
        agnhost,
        busybox,
        Image(tags=tags.get("pause", []), files={"pause": binaries["pause"]}, entrypoint=("/pause",)),
        Image(
            tags=tags.get("nonewprivs", []),
            files={"bin/busybox": _BUSYBOX, "usr/local/bin/nnp": binaries["nonewprivs"]},
            links=shell,
            modes={"usr/local/bin/nnp": 0o4755},
            command=("nnp",),
        ),
        Image(
            tags=tags.get("nonroot", []),
            files={"bin/busybox": _BUSYBOX},
            links=shell,
            command=("id", "-u"),
            user="1234",
        ),
        _web("nginx", tags, "usr/share/nginx/html", "Welcome to nginx!"),
        _web("kitten", tags, "html", "", {"html/data.json": '{\n"image": "kitten.jpg"\n}\n'}),
        _web("nautilus", tags, "html", "", {"html/data.json": '{\n"image": "nautilus.jpg"\n}\n'}),
        Image(
            tags=tags.get("glibc-dns-testing", []),
            files={"bin/busybox": _BUSYBOX, **tools},
            links={name: target for name, target in shell.items() if name.removeprefix("bin/") not in _TOOLS},
            command=("sh",),
        ),
    ]
    return [image for image in found if image.tags]


def host_program(name: str) -> dict[str, Path]:
    """Return a program and its shared libraries: path in the image → file here; empty if it is not installed."""
    found = shutil.which(name)
    if found is None:
        return {}
    program = Path(found)
    done = subprocess.run(["ldd", program], check=False, capture_output=True, text=True)
    files = {f"bin/{name}": program.resolve()}
    for library in _LIBRARY.findall(done.stdout):
        files[library.lstrip("/")] = Path(library).resolve()
    return files


def _web(
    name: str, tags: Mapping[str, list[str]], root: str, page: str, more: Mapping[str, str] | None = None
) -> Image:
    """Return a web server on port 80 that serves files and logs its requests."""
    texts = {**(more or {})}
    if page:
        texts[f"{root}/index.html"] = page + "\n"
    return Image(
        tags=tags.get(name, []),
        files={"bin/busybox": _BUSYBOX},
        texts=texts,
        links=_shell(),
        command=("httpd", "-f", "-vv", "-p", "80", "-h", f"/{root}"),
    )


def _shell() -> dict[str, str]:
    listed = subprocess.run([_BUSYBOX, "--list"], check=True, capture_output=True, text=True)
    return {f"bin/{applet}": "busybox" for applet in listed.stdout.split() if applet != "busybox"}
