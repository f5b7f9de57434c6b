"""Keeps what Helm prints for the same chart and input: in ``make unit``, it runs for what has changed only."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.chart import template
from tests.thorough import IS_THOROUGH

_KEPT_SECONDS = 7 * 24 * 3600
"""How long an answer is kept that no test asks for."""


@pytest.fixture(scope="session", autouse=True)
def _kept_answers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Answer Helm commands from pytest's cache, where both workers write. ``make test`` always runs Helm."""
    cache = pytestconfig.cache
    if IS_THOROUGH or cache is None:
        yield
        return
    folder, run = cache.mkdir("helm"), template.helm

    @functools.wraps(run)
    def kept(*arguments: str, stdin: str = "") -> str:
        file = folder / _key(arguments, stdin)
        try:
            output, error = json.loads(zlib.decompress(file.read_bytes()))
            os.utime(file)
        except OSError:
            output, error = _answer(arguments, stdin)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(zlib.compress(json.dumps([output, error]).encode(), 1))
            part.rename(file)
        if error is not None:
            raise template.HelmError(error)
        return str(output)

    def _answer(arguments: tuple[str, ...], stdin: str) -> tuple[str, str | None]:
        try:
            return run(*arguments, stdin=stdin), None
        except template.HelmError as error:
            return "", str(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "helm", kept)
        yield
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another worker was faster
            if time.time() - file.stat().st_mtime > _KEPT_SECONDS:
                file.unlink()


def _key(arguments: tuple[str, ...], stdin: str) -> str:
    """Return a name for all that the answer depends on. A chart counts by its files, not by its path."""
    program = template.program()
    parts = [str(program), str(program.stat().st_mtime_ns), stdin]
    for argument in arguments:
        path = Path(argument)
        parts += _contents(path) if path.is_absolute() and path.is_dir() else [argument]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _contents(chart: Path) -> Iterator[str]:
    for file in sorted(chart.rglob("*")):
        if file.is_file():
            yield file.relative_to(chart).as_posix()
            yield hashlib.sha256(file.read_bytes()).hexdigest()
