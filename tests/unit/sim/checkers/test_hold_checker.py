"""The checker of holds sees what it is there to see, in histories with one thing wrong."""

from __future__ import annotations

import pytest

from antiphon.ranges import Ranges
from antiphon.sim.checkers.holds import Holdings
from antiphon.sim.world import Violation, World
from tests.unit.message_manager.channel import Channel, Client

NODE, OTHER_NODE = 1, 2


class Log:
    """A queue of four messages that "reader" holds, two of them acknowledged; everything is shown."""

    def __init__(self) -> None:
        self.checker = Holdings(World(1))
        self.channel, self.client = Channel(), Client()
        self.channel.order(self.client.open())
        self.id = self.channel.create("q")
        self.first = self.channel.order(self.client.publish(self.id, [b"a", b"b", b"c", b"d"]))
        self.order(self.client.hold("reader", self.first, self.id))
        self.stop = self.channel.manager.applied
        self.order(self.client.ack(self.id, (self.first, self.first + 2)))

    @property
    def queue(self) -> Ranges:
        found = self.channel.manager.state.directory.get(self.id)
        assert found is not None and found.stored is not found.live
        return found.stored

    def order(self, *commands: bytes) -> None:
        self.channel.order(*commands)
        self.show()

    def show(self, node: int = NODE) -> None:
        """A node has folded the last entry."""
        self.checker.on_folded(node, self.channel.log[-1][0], self.channel.manager.state)

    def read(self, start: int, numbers: list[tuple[int, int]]) -> None:
        self.checker.on_range_read("reader", self.id, start, self.stop, Ranges(numbers))


def test_a_history_with_nothing_wrong_passes() -> None:
    log = Log()
    log.show(OTHER_NODE)
    log.read(log.first, [(log.first, log.first + 4)])
    log.order(log.client.hold("reader", log.first + 1, log.id, heard=log.channel.heard))
    log.read(log.first, [(log.first + 1, log.first + 4)])
    log.order(log.client.release("reader", log.channel.heard))
    log.read(log.first, [])


def test_a_hold_that_lives_again_though_nobody_asked_for_it_is_seen() -> None:
    log = Log()
    log.checker.on_hold_said("reader")
    log.order(log.client.release("reader", log.channel.heard))
    log.checker.on_hold_released("reader")
    again = log.client.hold("reader", log.first, log.id, heard=log.channel.heard)
    with pytest.raises(Violation, match="hold reader lives again"):
        log.order(again)


def test_a_hold_that_its_holder_asked_for_again_is_fine() -> None:
    log = Log()
    log.order(log.client.release("reader", log.channel.heard))
    log.checker.on_hold_released("reader")
    log.checker.on_hold_said("reader")
    log.order(log.client.hold("reader", log.first, log.id, heard=log.channel.heard))


def test_what_went_though_it_is_held_is_seen() -> None:
    log = Log()
    log.queue.remove(log.first, log.first + 1)
    with pytest.raises(Violation, match="went, which reader holds"):
        log.order(log.client.publish(log.id, [b"e"]))


def test_what_came_below_what_might_have_been_read_is_seen() -> None:
    log = Log()
    log.queue.add(log.stop, log.stop + 1)
    with pytest.raises(Violation, match="came, below"):
        log.order(log.client.publish(log.id, [b"e"]))


def test_a_position_that_goes_back_is_seen() -> None:
    log = Log()
    log.channel.manager.state.holds.rows["reader"].position -= 1
    with pytest.raises(Violation, match="has gone back"):
        log.order(log.client.publish(log.id, [b"e"]))


def test_what_is_kept_for_nobody_is_seen() -> None:
    log = Log()
    log.channel.order(log.client.hold("reader", log.first + 1, log.id, heard=log.channel.heard))
    log.queue.add(log.first, log.first + 1)
    with pytest.raises(Violation, match="acknowledged and not held"):
        log.show()


@pytest.mark.parametrize("wrong", ["position", "numbers", "missing", "more"])
def test_a_replica_that_differs_is_seen(wrong: str) -> None:
    log = Log()
    rows = log.channel.manager.state.holds.rows
    if wrong == "position":
        rows["reader"].position += 1
    elif wrong == "numbers":
        log.queue.remove(log.first, log.first + 1)
    elif wrong == "missing":
        del rows["reader"]
    else:
        rows["stranger"] = rows["reader"]
    with pytest.raises(Violation, match="others"):
        log.show(OTHER_NODE)


@pytest.mark.parametrize("wrong", [[(0, 3)], [(1, 4)], [(0, 2), (3, 4)], []])
def test_a_page_that_lacks_something_is_seen(wrong: list[tuple[int, int]]) -> None:
    log = Log()
    with pytest.raises(Violation, match="reader read"):
        log.read(log.first, [(log.first + start, log.first + stop) for start, stop in wrong])
