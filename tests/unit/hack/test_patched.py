"""Modules of others with patches of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.sandbox.builds import patched
from hack.sandbox.errors import SandboxError

_GO = """#!/bin/sh
case "$1 $2" in
"mod download") printf '{{"Dir": "%s/%s"}}' {cache} "$4" ;;
"mod edit") echo "$3" >> "$4" ;;
esac
"""
_PATCH = """A reason.
--- a/example.com/m@v1.2.3/sub/a.go
+++ b/example.com/m@v1.2.3/sub/a.go
@@ -1 +1 @@
-{old}
+new
diff --git a/example.com/m@v1.2.3/sub/c.go b/example.com/m@v1.2.3/sub/b.go
similarity index 100%
copy from example.com/m@v1.2.3/sub/c.go
copy to example.com/m@v1.2.3/sub/b.go
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a Go whose module cache has one module; a tool requires it."""
    original = tmp_path / "cache" / "example.com" / "m@v1.2.3" / "sub"
    original.mkdir(parents=True)
    (original / "a.go").write_text("original\n")
    (original / "c.go").write_text("copied\n")
    (original / "a.go").chmod(0o444)
    monkeypatch.setattr(patched, "TOOLS", tmp_path)
    (tmp_path / "tool").mkdir()
    for name in ("go.mod", "go.sum"):
        (tmp_path / "tool" / name).write_text(f"the {name}\n")
    (tmp_path / "copies").mkdir()
    program = tmp_path / "go"
    program.write_text(_GO.format(cache=tmp_path / "cache"))
    program.chmod(0o755)
    return str(program)


async def test_builds_with_a_patched_copy_and_leaves_the_module_cache_as_it_is(tmp_path, go):
    (tmp_path / "tool" / "modules.patch").write_text(_PATCH.format(old="original"))
    copies = tmp_path / "copies"
    assert await patched.flags(go, "tool", copies) == [f"-modfile={copies / 'go.mod'}"]
    copy = copies / "example.com" / "m@v1.2.3"
    assert (copy / "sub" / "a.go").read_text() == "new\n"
    assert (copy / "sub" / "b.go").read_text() == "copied\n"
    assert (copies / "go.mod").read_text() == f"the go.mod\n-replace=example.com/m@v1.2.3={copy}\n"
    assert (tmp_path / "cache" / "example.com" / "m@v1.2.3" / "sub" / "a.go").read_text() == "original\n"


async def test_a_patch_that_does_not_fit_is_an_error(tmp_path, go):
    (tmp_path / "tool" / "modules.patch").write_text(_PATCH.format(old="another version"))
    with pytest.raises(SandboxError, match="patch does not apply"):
        await patched.flags(go, "tool", tmp_path / "copies")


async def test_a_module_without_patches_is_built_as_published(tmp_path, go):
    assert await patched.flags(go, "tool", tmp_path / "copies") == []
