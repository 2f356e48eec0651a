"""Once nothing fails any more, everything comes to its end (I17, and the second half of I4).

One node leads. Nobody waits for an envelope. Every member has applied everything that was committed, and
they are equal. That it comes to this within a bounded time is for the workload to see to; that it has
come to it is judged here.
"""

from __future__ import annotations

from antiphon.sim.checkers.committed import Committed
from antiphon.sim.checkers.watch import Checker, NodeFacts
from antiphon.sim.world import World


class Liveness(Checker):
    """Compares how the nodes stand at the end."""

    promise = "I17 liveness"

    def __init__(self, world: World, committed: Committed) -> None:
        super().__init__(world)
        self._committed = committed

    def what_is_open(self, facts: dict[int, NodeFacts]) -> str:
        """What still has to happen; nothing when all is quiet."""
        committed = self._committed
        leading = [node for node, fact in facts.items() if fact.is_leading]
        if len(leading) != 1:
            return f"nodes {leading} lead"
        for node, fact in facts.items():
            if fact.waits_for:
                return f"node {node} waits for {fact.waits_for} envelopes"
        digests: dict[bytes, int] = {}
        for node in committed.memberships.newest.data_servers:
            member = facts.get(node)
            if member is None:
                return f"node {node} is down"
            if member.applied != committed.upto:
                return f"node {node} has applied {member.applied}, {committed.upto} is committed"
            digests.setdefault(member.digest, node)
        if len(digests) > 1:
            return f"nodes {sorted(digests.values())} differ after {committed.upto}"
        return ""

    def at_end(self, facts: dict[int, NodeFacts]) -> None:
        if text := self.what_is_open(facts):
            self.fail(text)
