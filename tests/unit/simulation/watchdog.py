"""What must hold at every moment: it looks at each change of what the clusters store."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

from clusterset.model import names
from tests.fakes.apiserver.rules import FINISHED
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit
from tests.unit.simulation.bodies import is_ending, key_of, labels_of, uid_of
from virtual_node.translate.base.ownership import mirrored_as

OURS = "vn:"
"""How the names of our processes begin where it is noted who changed something."""
PERIODIC = frozenset({"leases", "nodes"})
"""Resources that are written every minute, however quiet it is."""
_CONTENT = ("pods", "configmaps", "secrets", "services")
_LISTING = 1.0
"""Seconds in which a process lists the content of a namespace before it deletes it. The deletion of a namespace cannot
depend on its content, so an object that is created meanwhile is deleted with it."""


class Watchdog:
    """Notes what is wrong.

    Attributes:
        wrong: each a sentence with the change.
        pods: the upper pods, by uid.
    """

    def __init__(self, upper: Server, lowers: Mapping[str, Server]) -> None:
        self.wrong: list[str] = []
        self.pods: dict[str, Body] = {}
        self._upper, self._lowers = upper, lowers
        self._made_by: dict[str, str] = {}
        """Uid of any object → who made it."""
        self._made_at: dict[str, float] = {}
        """Uid of a lower object → time of the loop when it was created."""
        self._made_for: dict[str, str] = {}
        """Uid of a lower pod → uid of the upper one."""
        self._times_made: defaultdict[str, int] = defaultdict(int)
        self._was_shown: set[str] = set()
        """Uids of upper pods of which it has been said above that they are below."""
        upper.observers.append(self._above)
        for lower in lowers.values():
            lower.observers.append(partial(self._below, lower))

    def is_ours(self, body: Body) -> bool:
        """Whether one of our processes has made an object."""
        return self._made_by[uid_of(body)].startswith(OURS)

    def others_in(self, lower: Server, namespace: str) -> dict[str, str]:
        """Return the uids, by key, of the objects in a lower namespace that our processes have not created."""
        content = (body for plural in _CONTENT for body in lower.all(plural))
        return {
            key_of(body): uid_of(body)
            for body in content
            if body["metadata"]["namespace"] == namespace and not self.is_ours(body)
        }

    # --- above ------------------------------------------------------------------------------------

    def _above(self, commit: Commit) -> None:
        is_ours = commit.who.startswith(OURS)
        if commit.old is None:
            self._made_by[uid_of(commit.body)] = commit.who
        if commit.plural == "pods":
            if is_ours:
                self._our_change_of_a_pod(commit)
            self._follow(commit)
        elif is_ours and not self._may_write(commit):
            self._say(commit, "an object of the upper cluster was changed")

    def _may_write(self, commit: Commit) -> bool:
        """Whether our processes may write such an object of the upper cluster, pods excepted."""
        if commit.plural in {"nodes", "leases", "persistentvolumes", "csidrivers"}:
            return commit.old is None or self.is_ours(commit.old)
        if commit.plural != "persistentvolumeclaims" or commit.old is None or commit.verb == "delete":
            return False
        return commit.new is None or commit.new["spec"] == commit.old["spec"]

    def _follow(self, commit: Commit) -> None:
        uid = uid_of(commit.body)
        if commit.new is None:
            self.pods.pop(uid, None)
            return
        self.pods[uid] = commit.new
        mark = (commit.new["metadata"].get("annotations") or {}).get(names.ANNOTATION_LOWER_UID)
        if mirrored_as(mark, uid) or commit.new["status"].get("startTime"):
            self._was_shown.add(uid)

    def _our_change_of_a_pod(self, commit: Commit) -> None:
        if commit.old is None:
            self._say(commit, "an upper pod was made")
            return
        if commit.verb not in {"patch status", "delete"}:
            self._say(commit, f"an upper pod was changed by {commit.verb}")
        if commit.verb == "delete" and not is_ending(commit.old):
            self._say(commit, "an upper pod was deleted that nobody else deletes")
        if commit.new is None:
            alive = [
                key_of(pod)
                for lower in self._lowers.values()
                for pod in lower.all("pods")
                if self._made_for.get(uid_of(pod)) == uid_of(commit.old)
                and pod["status"]["phase"] not in FINISHED
                and "late" not in self._made_by[uid_of(pod)]  # nobody can foresee these
            ]
            if alive:
                self._say(commit, f"an upper pod was removed while {alive} lives below")
            return
        before, after = commit.old["status"].get("phase"), commit.new["status"].get("phase")
        if before in FINISHED and before != after:
            self._say(commit, f"a pod that had ended went from {before} to {after}")

    # --- below ------------------------------------------------------------------------------------

    def _below(self, lower: Server, commit: Commit) -> None:
        is_ours = commit.who.startswith(OURS)
        if commit.old is None:
            self._made_by[uid_of(commit.body)] = commit.who
            self._made_at[uid_of(commit.body)] = asyncio.get_running_loop().time()
            if is_ours and commit.plural == "pods":
                self._our_pod(commit)
            return
        if not is_ours:
            return
        if not self.is_ours(commit.old):
            self._say(commit, f"an object of {self._made_by[uid_of(commit.old)]} was touched")
        if commit.verb != "delete" or is_ending(commit.old):
            return
        if commit.plural == "pods":
            upper = self.pods.get(self._made_for.get(uid_of(commit.old), ""))
            if upper is not None and not is_ending(upper) and upper["status"].get("phase") not in FINISHED:
                self._say(commit, "a lower pod was deleted while it is wanted above")
        elif commit.plural == "namespaces":
            self._our_deletion_of_a_namespace(lower, commit)

    def _our_pod(self, commit: Commit) -> None:
        upper_uid = labels_of(commit.body).get(names.LABEL_UPPER_UID, "")
        self._made_for[uid_of(commit.body)] = upper_uid
        self._times_made[upper_uid] += 1
        if self._times_made[upper_uid] > 1 and upper_uid in self._was_shown:
            self._say(commit, f"{upper_uid} was started again, and had been shown above")
        upper = self.pods.get(upper_uid, {})
        has_ended = (upper.get("status") or {}).get("phase") in FINISHED
        if has_ended and "late" not in commit.who:
            self._say(commit, f"{upper_uid} was started though it has ended")

    def _our_deletion_of_a_namespace(self, lower: Server, commit: Commit) -> None:
        if self._upper.find("namespaces", commit.key) is not None:
            self._say(commit, "a lower namespace was deleted while its upper one is there")
        now = asyncio.get_running_loop().time()
        others = [
            key
            for key, uid in self.others_in(lower, commit.key).items()
            if now - self._made_at[uid] > _LISTING
        ]
        if others:
            self._say(commit, f"a lower namespace was deleted with {others} in it")

    def _say(self, commit: Commit, what: str) -> None:
        self.wrong.append(
            f"v{commit.version} {commit.who} {commit.verb} {commit.plural} {commit.key}: {what}"
        )
