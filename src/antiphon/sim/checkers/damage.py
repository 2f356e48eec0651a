"""Who has lost something does not vote, and never says that something is not there (I18).

A commit server whose disk is damaged, or is not the one that the configuration lists, promises nothing and
acknowledges nothing: what it says could be counted together with what it has forgotten. And to a question
it answers with what it has, or not at all: "I have nothing there" would be taken for a fact of the order.
"""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.messages import ServerStatus
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.image import Image
from antiphon.sim.world import World

_FORGETFUL = (ServerStatus.DAMAGED, ServerStatus.AMNESIA)


class Damage(Checker):
    """Knows the status of each server by what the runner tells and by what the server says itself."""

    promise = "I18 damage"
    hears = (
        m.SealOk,
        m.SealNack,
        m.CommitAcknowledge,
        m.FetchLogReply,
        m.FetchIdReply,
        m.FetchRangeReply,
        m.StoredReply,
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._status: dict[int, ServerStatus] = {}

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._status.pop(node, None)

    def on_status(self, node: int, status: ServerStatus) -> None:
        self._status[node] = status

    def on_sent(self, node: int, message: m.BusMessage) -> None:
        if isinstance(message, m.SealNack | m.CommitAcknowledge) and message.status in _FORGETFUL:
            self._status[node] = message.status
        if self._status.get(node) not in _FORGETFUL:
            return
        status = self._status[node].name
        match message:
            case m.SealOk() | m.FetchLogReply():
                self.fail(f"node {node} is {status} and gives its log to a candidate")
            case m.CommitAcknowledge(status=ServerStatus.OK):
                self.fail(f"node {node} is {status} and acknowledges")
            case m.FetchIdReply(entries=()) | m.FetchRangeReply(entries=()):
                self.fail(f"node {node} is {status} and says that there are no entries")
            case m.StoredReply(is_gone=True):
                self.fail(f"node {node} is {status} and says that a checkpoint is gone")
            case _:
                pass
