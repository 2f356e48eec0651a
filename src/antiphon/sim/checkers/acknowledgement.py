"""An acknowledgement is final, as seen at the client ports (I13 from outside).

Once a node has confirmed an acknowledgement of a message to a client, no other acknowledgement of the message
is confirmed, over all lives of the node. A lone node never delivers the message again. In a cluster no client
library hands the message to its application after that, whatever lay in sockets and buffers.
"""

from __future__ import annotations

from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Checker, PortConsumer
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode

_ACCEPTED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)


class Acknowledgements(Checker):
    """The confirmed acknowledgement of each message."""

    promise = "I13 acknowledged once"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._asked: dict[tuple[int, int], tuple[int, Ranges]] = {}
        # By the subscription, 0 for a queue, and the number of the message.
        self._accepted: dict[tuple[int, int], tuple[int, int]] = {}

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        self._asked[session, number] = subscription, ranges

    def on_confirm_left(self, node: int, session: int, number: int, count: int, code: int, at: int) -> None:
        if code not in _ACCEPTED:
            return
        for row in range(count):
            command = (session, number + row)
            asked = self._asked.get(command)
            if asked is None:
                continue
            subscription, ranges = asked
            for message in ranges.numbers():
                first = self._accepted.setdefault((subscription, message), command)
                if first != command:
                    self.fail(f"two acknowledgements of {message} were accepted, {first} and {command}")


class FinalAcknowledgements(Acknowledgements):
    """A lone node applies and delivers itself: a confirmed message cannot be under way any more."""

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        for message in range(sequence, sequence + count):
            if (0, message) in self._accepted:
                self.fail(f"{message} leaves for {holder} after its acknowledgement was confirmed")


class Finality(Checker):
    """Compares the messages that client libraries hand over with the confirmed acknowledgements."""

    promise = "I13 acknowledged for good"

    def __init__(self, world: World, channel: str = "") -> None:
        """With a channel, the acknowledgements outside of transactions in that channel count."""
        super().__init__(world)
        self._channel = channel
        self._asked: dict[tuple[int, int], tuple[int, Ranges]] = {}
        # By channel and subscription: the acknowledged numbers, and when their client was told.
        self._settled: dict[tuple[str, int, int], int] = {}

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        self._asked[session, number] = subscription, ranges

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        if code in _ACCEPTED and self._channel:
            for row in range(count):
                if (asked := self._asked.get((session, number + row))) is not None:
                    self.settle(self._channel, *asked)

    def settle(self, channel: str, subscription: int, numbers: Ranges) -> None:
        """A client was told that its acknowledgement of these messages is accepted."""
        for number in numbers.numbers():
            self._settled.setdefault((channel, subscription, number), self.world.now_ns)

    def on_given(self, channel: str, subscription: int, number: int, redelivered: int) -> None:
        if redelivered:
            # Another consumer had the message before; its acknowledgement may come late, and is accepted.
            return
        settled_ns = self._settled.get((channel, subscription, number))
        if settled_ns is not None:
            ago_ms = (self.world.now_ns - settled_ns) / 1e6
            self.fail(f"{number} of {channel} is handed out {ago_ms:.1f} ms after it was acknowledged")
