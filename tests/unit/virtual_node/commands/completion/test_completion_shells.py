"""Real shells complete with the scripts: commands, flags, values, files, and names with characters that split words in bash."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.thorough import some
from virtual_node.commands.completion.command import SCRIPTS

ROOT = Path(__file__).parents[5]
NATIVE = {
    "bash": """
        source <(virtual-node completion bash)
        COMP_WORDS=({pieces}); COMP_CWORD={last}; COMP_LINE={line}; COMP_POINT=${{#COMP_LINE}}
        compopt() {{ [[ $* == "-o nospace" ]] && echo NOSPACE; }}
        complete -p virtual-node >/dev/null && __virtual_node_complete
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        compdef() {{ : }}
        compset() {{ PREFIX="${{words[CURRENT]#*=}}" }}
        _describe() {{ local one; for one in "${{(@P)3}}"; do print -r -- "$one"; done; [[ "$4" == -S ]] && print NOSPACE }}
        _files() {{ print -rl -- ${{PREFIX-${{words[CURRENT]}}}}*(N) }}
        source <(virtual-node completion zsh)
        words=({words}); CURRENT=${{#words}}
        _virtual-node
    """,
    "fish": """
        virtual-node completion fish | source
        complete -C {line}
    """,
}
"""Passes a line to a shell's completion; bash and zsh have no terminal, so their queries are answered."""


@pytest.fixture(params=NATIVE)
def shell(request: pytest.FixtureRequest) -> str:
    """Each installed shell."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the PATH, and a home."""
    (tmp_path / "shopfile").touch()
    return tmp_path


def _stand_in(folder: Path, shell: str, answer: Sequence[str]) -> Path:
    """Make a program with this output; return the file in which it records its arguments, one per line."""
    noted, script = folder / "noted", folder / "script"
    script.write_text(SCRIPTS[shell], encoding="utf-8")
    said = " ".join(map(_quoted, answer))
    _executable(
        folder,
        f'case "$1" in completion) cat {script};; *) printf "%s\\n" "$@" > {noted}; printf "%s\\n" {said};; esac',
    )
    return noted


def _executable(folder: Path, does: str) -> None:
    program = folder / "virtual-node"
    program.write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    program.chmod(0o755)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _complete(shell: str, folder: Path, line: str) -> list[str]:
    """Return the completions of the last word, complete, without descriptions."""
    words = line.split(" ")
    # Split as bash does, by its COMP_WORDBREAKS.
    pieces = [piece for word in words for piece in re.findall(r"[=:@]+|[^=:@]+", word) or [""]]
    script = NATIVE[shell].format(
        line=_quoted(line),
        pieces=" ".join(map(_quoted, pieces)),
        last=len(pieces) - 1,
        words=" ".join(map(_quoted, words)),
    )
    quiet: Mapping[str, Sequence[str]] = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}
    done = subprocess.run(
        [shell, *quiet[shell], "-c", script], capture_output=True, text=True, check=False, cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder), "LANG": "C.UTF-8"},
    )  # fmt: skip
    assert done.stderr == ""
    found = [one for one in done.stdout.splitlines() if one]
    if shell == "zsh":
        found = [re.split(r"(?<!\\):", one)[0].replace("\\:", ":") for one in found]
        flag = words[-1].partition("=")[0] + "=" if re.match("-.*=", words[-1]) else ""
        return [one if one == "NOSPACE" else flag + one for one in found]
    if shell == "bash":
        last = "" if re.fullmatch("[=:@]*", pieces[-1]) else pieces[-1]
        head = words[-1].removesuffix(last)  # stays on the line
        return [one if one == "NOSPACE" else head + one for one in found]
    return sorted(one.partition("\t")[0] for one in found)


OUTPUTS = [f"--output={one}" for one in ("json", "yaml")]
ADMIN, ARN = "kubernetes-admin@kubernetes", "arn:aws:eks:eu:1:cluster/a"


@pytest.mark.parametrize(
    ("line", "answer", "expected"),
    [
        ("", ["check\tabout it: all", "status", ":4"], ["check", "status"]),
        ("sta", ["status\tevery node", ":4"], ["status"]),
        ("status --output=", ["json", "yaml", ":4"], OUTPUTS),
        ("status --output=y", ["yaml", ":4"], ["--output=yaml"]),
        ("status --output=json --c", ["--context", ":4"], ["--context"]),
        ("status --kubeconfig shopf", [":0"], ["shopfile"]),
        ("status --kubeconfig=shopf", [":0"], ["--kubeconfig=shopfile"]),
        ("status zzz", [":4"], []),
        ("status --context kube", [ADMIN, ":4"], [ADMIN]),
        ("status --context kubernetes-admin@", [ADMIN, ":4"], [ADMIN]),
        ("status --context kubernetes-admin@k", [ADMIN, ":4"], [ADMIN]),
        ("status --context arn:aws", [ARN, ":4"], [ARN]),
        ("status --context=arn:a", [ARN, ":4"], [f"--context={ARN}"]),
        ("status -l a/b=c", ["a/b=cd", ":4"], ["a/b=cd"]),
        ("diagnose pod sho", ["shop/", ":6"], ["shop/", "NOSPACE"]),
    ],
)  # fmt: skip
def test_a_shell_completes(shell: str, folder: Path, line: str, answer: list[str], expected: list[str]):
    """The program gets the words as they were typed, and its output replaces the last one."""
    noted = _stand_in(folder, shell, answer)
    found = _complete(shell, folder, f"virtual-node {line}")
    assert noted.read_text(encoding="utf-8").splitlines() == ["__complete", *line.split(" ")]
    if shell == "fish":
        expected = [one for one in expected if one != "NOSPACE"]  # it sees the slash
    assert sorted(found) == sorted(expected)


def test_bash_quotes_names_with_special_characters(folder: Path):
    """A context may have any name, and its name must not be executed."""
    name = "$(touch run) of 'b'; touch run"
    _stand_in(folder, "bash", [name, ":4"])
    (word,) = _complete("bash", folder, "virtual-node status --context ")
    said = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, text=True, check=True, cwd=folder
    )
    assert said.stdout == name
    assert not (folder / "run").exists()


@pytest.mark.parametrize("shell", some([*NATIVE], 1), indirect=True)
def test_a_shell_runs_the_program(shell: str, folder: Path):
    """The real one."""
    _executable(folder, f'exec {sys.executable} -m virtual_node "$@"')
    assert _complete(shell, folder, "virtual-node diag") == ["diagnose"]
