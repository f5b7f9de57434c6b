"""Files that the image does not need, as patterns of paths."""

from __future__ import annotations

import shutil
from pathlib import Path

from hack.image.python_packages import PYTHON, SITE

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
    "usr/lib/locale",
    "usr/bin/[!p]*",
    "usr/bin/pdb*",
    "usr/bin/py*versions",
    "etc/binfmt.d",
    "etc/bindresvport.blacklist",
    # Files of Python: build tools, graphics and tests.
    *(
        f"usr/lib/{PYTHON}/{name}"
        for name in ("distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo")
    ),
    # Files of Python packages: headers, tests and others that are not needed at run time.
    f"{SITE}/bin",
    f"{SITE}/*/tests",
    f"{SITE}/*/test",
    f"{SITE}/*/*.pyx",
    f"{SITE}/*/*.c",
)


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
