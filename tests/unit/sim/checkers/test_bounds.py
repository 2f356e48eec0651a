"""What machines keep at rest, and how often commands stand in the order."""

from __future__ import annotations

from collections import deque

import pytest

from antiphon.bus.effects import PrimaryChanged
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, SessionDetached, SessionDetachedHeard
from antiphon.bus.producer import BusProducer
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.requests import Requests
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.ids import Mid
from antiphon.journal.format import segment_name, spare_name
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.bounds import (
    AT_REST,
    SAID_AGAIN,
    SAID_ANYHOW,
    Repetitions,
    Rest,
    Space,
    containers,
)
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import CommandKind, LogTime, Outcome, OutcomeCode, encode_command


def a_producer() -> BusProducer:
    return BusProducer(GroupConfig.of("main", (1, 2, 3)), 2, bytes(16))


def test_containers_are_found_wherever_a_machine_keeps_them() -> None:
    producer = a_producer()
    producer._exceptions = [Outcome(n, 1, OutcomeCode.REFUSED) for n in range(3)]
    sizes = {one.name: one.size for one in containers({"a": deque([producer])})}
    assert sizes["BusProducer._exceptions"] == 3
    assert sizes["BusProducer._sent"] == sizes["BusProducer._unconfirmed"] == 0


def test_what_is_kept_at_rest_is_bounded_by_a_constant() -> None:
    producer = a_producer()
    rest = Rest(World(1))
    producer._exceptions = [Outcome(n, 1, OutcomeCode.REFUSED) for n in range(AT_REST)]
    rest.at_rest("node 2", [producer])
    producer._exceptions += [Outcome(99, 1, OutcomeCode.REFUSED)]
    with pytest.raises(Violation, match=r"at rest BusProducer\._exceptions of node 2 holds 25, at most 24"):
        rest.at_rest("node 2", [producer])


def test_sessions_that_a_client_manager_remembers_for_a_primary_have_a_bound_of_their_own() -> None:
    outbox = Outbox()
    requests = Requests(ClientManagerSettings(), outbox)
    requests.primary_changed("a", PrimaryChanged(1, 1))
    for session in range(2 * AT_REST):
        requests.detach("a", SessionDetached(session, 1))
    outbox.take()
    rest = Rest(World(1))
    assert rest.complaint("node 12", [requests]) is not None, "no primary has answered"
    for session in range(2 * AT_REST):
        requests.detached_heard("a", SessionDetachedHeard(session, 1, 1))
    requests.keep_time(0)
    assert rest.complaint("node 12", [requests]) is None


class FewRecords(ChannelState):
    """A state that refers to a record in each of these segments."""

    def __init__(self, *segments: int) -> None:
        self._segments = segments

    def records(self) -> tuple[Location, ...]:
        return tuple([Location(segment, 0, 10, 7) for segment in self._segments])


def a_disk(segments: int, spares: int = 0) -> MemoryDisk:
    disk = MemoryDisk()
    for number in range(1, segments + 1):
        disk.create(segment_name(number), 8192)
    for number in range(1, spares + 1):
        disk.create(spare_name(number), 8192)
    disk.create("reserve", 1 << 20)
    return disk


def test_three_segments_are_left_on_a_disk_at_rest_and_those_in_which_something_lives() -> None:
    space = Space(World(1))
    assert space.complaint("node 2", a_disk(0), None) is None
    assert space.complaint("node 2", a_disk(2, spares=1), None) is None
    told = space.complaint("node 2", a_disk(3, spares=1), None)
    assert told is not None and told.startswith("at rest the journal of node 2 has 32768 bytes in 3 segments")
    assert space.complaint("node 2", a_disk(4), FewRecords(2, 2)) is None
    assert space.complaint("node 2", a_disk(5), FewRecords(2, 2)) is not None, "two records in one segment"


def said(repetitions: Repetitions, number: int, time_ms: int) -> None:
    payload = encode_command(CommandKind.LOG_TIME, 0, 0, 0, 0, LogTime(term=1, time_ms=time_ms).encode())
    entry = Entry(number, 1, EntryKind.DATA, Mid(1, 1, number), 0, NO_DIGEST)
    for node in (1, 2, 3):
        repetitions.on_applied(node, entry, memoryview(payload))


def test_what_is_said_once_may_be_as_much_as_it_wants() -> None:
    repetitions = Repetitions(World(1))
    for number in range(1, 500):
        said(repetitions, number, number)


def test_what_is_said_for_ever_is_seen() -> None:
    repetitions = Repetitions(World(1))
    for number in range(1, SAID_AGAIN + SAID_ANYHOW + 1):
        said(repetitions, number, 7)
    with pytest.raises(Violation, match="the log has 69 commands, and 1 were sent"):
        said(repetitions, SAID_AGAIN + SAID_ANYHOW + 1, 7)


def test_the_machines_of_a_run_are_walked_in_whichever_module_their_class_is() -> None:
    class Machines:
        def __init__(self) -> None:
            self.rows = [1, 2, 3]

    assert ("Machines.rows", 3) in [(one.name, one.size) for one in containers(Machines())]
