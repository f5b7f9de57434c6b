"""What ``diagnose`` is asked about: a type as kubectl spells it, and a name."""

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
"""What can be diagnosed, by its full name."""
_SHORT = {"po": "pod", "no": "node", "deploy": "deployment", "sts": "statefulset", "ds": "daemonset",
          "rs": "replicaset"}  # fmt: skip
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class Kinds(tuple[str, ...]):
    """argparse's choices: completed by their full names, taken by kubectl's short ones and with a name behind."""

    __slots__ = ()

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and full(word.partition("/")[0]) in KINDS


def full(word: str) -> str:
    """``deployment`` of ``deploy``, ``deployments`` and ``deployment.apps``; any other word without its plural's s."""
    word = word.partition(".")[0].lower()
    return _SHORT.get(word, word if word in KINDS else word.removesuffix("s"))


def target(first: str, second: str | None) -> tuple[str, str, str]:
    """Kind, namespace if there is one, and name, of ``pod/web``, ``pod web``, ``pod shop/web`` or ``pod/shop/web``.

    Raises:
        ConfigError: it is none of these.
    """
    word, slash, rest = first.partition("/")
    if bool(slash) == (second is not None):
        raise ConfigError("diagnose: say TYPE/NAME or TYPE NAME, such as pod/web, deploy/web, node/vn-tokyo")
    kind = full(word)
    namespace, _, name = (second or rest).rpartition("/")
    for what, text in (("namespace", namespace), (kind, name)):
        if (text or what == kind) and not _NAME.fullmatch(text):
            raise ConfigError(f"{text!r} is not the name of a {what}")
    return kind, namespace, name
