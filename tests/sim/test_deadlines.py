"""A node asks a machine for its deadline only when that machine has done something. These runs compare, after
every step, the deadline that node and replica keep with what all their machines say then.
"""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.replica import Replica
from antiphon.node import Node
from antiphon.sim import runs


def earliest(machines: list[Any]) -> int | None:
    deadlines = [one.next_deadline_ns() for one in machines if one is not None]
    return min([at for at in deadlines if at is not None], default=None)


@pytest.mark.parametrize(("workload", "seed"), [("cluster", 3), ("cluster", 7), ("holds", 2), ("node", 1)])
def test_deadlines_are_up_to_date_after_every_step(
    workload: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_node, step_replica = Node.step, Replica.step
    compared = 0

    def watched_node(self: Node, *arguments: Any) -> Any:
        nonlocal compared
        effects = step_node(self, *arguments)
        machines: list[Any] = [self.client_manager, self._inquiries, self._events]
        for parts in self.channels.values():
            machines += [parts.replica, parts.producer, parts.manager, parts.listener]
        assert self.next_deadline_ns() == earliest(machines)
        compared += 1
        return effects

    def watched_replica(self: Replica, *arguments: Any) -> Any:
        effects = step_replica(self, *arguments)
        assert self.next_deadline_ns() == earliest([seat.role for seat in self._seats])
        return effects

    monkeypatch.setattr(Node, "step", watched_node)
    monkeypatch.setattr(Replica, "step", watched_replica)
    assert runs.run(workload, seed).violation == ""
    assert compared > 100


@pytest.mark.parametrize("workload", ["bus", "node"])
def test_a_deadline_that_is_never_moved_is_seen(workload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointServer, "next_deadline_ns", lambda self: 1)
    assert "steps without a pause" in runs.run(workload, 1).violation
