"""Parses the object to diagnose: a type as kubectl spells it, and a name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from controller_runtime import resources
from controller_runtime.errors import ConfigError
from controller_runtime.resources import Resource

KINDS: Mapping[str, Resource] = {
    "pod": resources.PODS,
    "node": resources.NODES,
    "deployment": resources.DEPLOYMENTS,
    "statefulset": resources.STATEFUL_SETS,
    "daemonset": resources.DAEMON_SETS,
    "replicaset": resources.REPLICA_SETS,
    "job": resources.JOBS,
}
"""Kinds that can be diagnosed, by their full names."""
_SHORT = {"po": "pod", "no": "node", "deploy": "deployment", "sts": "statefulset", "ds": "daemonset",
          "rs": "replicaset"}  # fmt: skip
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class Kinds(tuple[str, ...]):
    """Choices for argparse: completes full names, but also accepts kubectl's short names and ``TYPE/NAME``."""

    __slots__ = ()

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and full(word.partition("/")[0]) in KINDS


def full(word: str) -> str:
    """Return a kind's full name: ``deployment`` for ``deploy``, ``deployments`` and ``deployment.apps``.

    Any other word is returned without a trailing s.
    """
    word = word.partition(".")[0].lower()
    return _SHORT.get(word, word if word in KINDS else word.removesuffix("s"))


def target(first: str, second: str | None) -> tuple[str, str, str]:
    """Parse ``pod/web``, ``pod web``, ``pod shop/web`` or ``pod/shop/web`` into kind, namespace and name.

    The namespace is empty if none is given.

    Raises:
        ConfigError: the words have none of these forms.
    """
    word, slash, rest = first.partition("/")
    if bool(slash) == (second is not None):
        raise ConfigError("diagnose: give TYPE/NAME or TYPE NAME, such as pod/web, deploy/web, node/vn-tokyo")
    kind = full(word)
    namespace, _, name = (second or rest).rpartition("/")
    for what, text in (("namespace", namespace), (kind, name)):
        if (text or what == kind) and not _NAME.fullmatch(text):
            raise ConfigError(f"{text!r} is not the name of a {what}")
    return kind, namespace, name
