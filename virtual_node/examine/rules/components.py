"""Rules about the pods of our components."""

from __future__ import annotations

from virtual_node.examine.codes import Code
from virtual_node.examine.components import replica_trouble
from virtual_node.examine.engine import rule
from virtual_node.examine.facts import COMPONENTS, WORDS
from virtual_node.examine.finding import UPPER, Findings, finding
from virtual_node.examine.objects import key
from virtual_node.examine.snapshot import Snapshot


@rule(Code.REPLICA_FAILING, needs=[COMPONENTS], uses=[WORDS])
def components(snapshot: Snapshot) -> Findings:
    """Yield pods of our components that fail."""
    words = snapshot.upper.get(WORDS) or {}
    for pod in snapshot.upper[COMPONENTS]:
        if found := replica_trouble(pod, words.get(key(pod), ""), snapshot.now):
            cause, step = found
            yield finding(Code.REPLICA_FAILING, UPPER, "Pod", key(pod), cause, step, transient=True)
