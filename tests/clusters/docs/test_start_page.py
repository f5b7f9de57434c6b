"""Runs docs/start.md on the shared clusters: its logs and exec need a real node, which the clusters of other pages do not have."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hack.sandbox import Sandbox
from hack.sandbox.command import command
from hack.sandbox.commands import environment
from tests.clusters.docs.documents import START, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
_VARIES = re.compile(r"\b(?:\d+[dhms])+\b|\d+(?:\.\d+){3}|v1\.\d+\.\d+| +")
"""Ages, addresses, versions and widths of columns in outputs."""


async def test_the_start_page_works_and_shows_its_outputs(sandbox: Sandbox, tmp_path: Path):
    """Each command succeeds, and each output line below a command is a line of its output."""
    setup = environment.write(sandbox)
    for block in blocks(START):
        if block.file:
            (tmp_path / block.file).write_text(block.script, encoding="utf-8")
        elif not block.reason:
            script = f". {setup}; cd {tmp_path}; set -euo pipefail\n{block.script}"
            done = await command(["bash", "-c", script], env=dict(os.environ), check=False, timeout=120)
            assert done.returncode == 0, f"{block.place}: {done.stdout}\n{done.stderr}"
            said = set(map(_kept, done.stdout.splitlines()))
            assert [line for line in block.output if _kept(line) not in said] == [], done.stdout


def _kept(line: str) -> str:
    return _VARIES.sub(" ", line).strip()
