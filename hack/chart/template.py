"""``helm template`` and ``helm lint`` of the chart, with the sandbox's helm."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from hack.chart.rights import CHART
from hack.sandbox.builds import binaries
from hack.sandbox.builds.programs import KUBERNETES_VERSION

NAMESPACE = "virtual-node-system"
_BETWEEN = re.compile(r"\n{2,}---\n")


class HelmError(Exception):
    """Helm failed or printed a warning; the text is its output."""


@cache
def program() -> Path:
    """Return the path of helm, built if necessary."""
    with ThreadPoolExecutor(1) as thread:  # asyncio.run needs a thread without an event loop
        return thread.submit(lambda: asyncio.run(binaries.ensure(["helm"]))["helm"]).result()


def helm(*arguments: str, stdin: str = "") -> str:
    """Return the output of a helm command.

    Raises:
        HelmError: helm failed or printed a warning.
    """
    done = subprocess.run(
        [program(), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        # Saves a fifth of the CPU time of a process that runs only for seconds.
        env={"GOGC": "off", "GOMAXPROCS": "1", **os.environ},
        check=False,
        timeout=120,
    )
    if done.returncode or "warning" in done.stderr.lower():
        raise HelmError((done.stderr or done.stdout).strip())
    return done.stdout


def template(
    values: str = "", *, release: str = "vn", namespace: str = NAMESPACE, arguments: Sequence[str] = ()
) -> str:
    """Return the chart's objects as YAML, for values given as YAML.

    Raises:
        HelmError: the values are wrong.
    """
    text = helm(
        *("template", release, str(CHART), f"--namespace={namespace}"),
        *(f"--kube-version={KUBERNETES_VERSION}", "--values=-", *arguments),
        stdin=values or "{}",
    )
    # Helm 4 keeps the empty lines at a template's end, Helm 3 does not.
    return _BETWEEN.sub("\n---\n", f"{text.rstrip()}\n")


def lint(values: str) -> str:
    """Return the output of ``helm lint --strict`` for the chart with values given as YAML.

    Raises:
        HelmError: helm reports a warning or an error.
    """
    return helm(
        *("lint", str(CHART), "--strict", "--quiet"),
        *(f"--kube-version={KUBERNETES_VERSION}", f"--namespace={NAMESPACE}", "--values=-"),
        stdin=values or "{}",
    )
