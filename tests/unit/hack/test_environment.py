"""The file that a shell reads to use a sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hack.sandbox.commands import environment


def test_a_shell_reads_paths_with_blanks(tmp_path):
    """PATH begins with the sandbox's programs, and each cluster has a variable with its kubeconfig."""
    place = tmp_path / "a b" / "bin"
    kubeconfigs = {name: tmp_path / "a b" / name / "kubeconfig" for name in ("upper", "lower1")}
    file = tmp_path / "env"
    file.write_text(environment.text(place, kubeconfigs), encoding="utf-8")
    done = subprocess.run(
        ["sh", "-c", f'. {file}; printf "%s\\n" "${{PATH%%:*}}" "$KUBECONFIG" "$UPPER" "$LOWER1"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    upper = kubeconfigs["upper"]
    assert [Path(line) for line in done.stdout.splitlines()] == [place, upper, upper, kubeconfigs["lower1"]]
