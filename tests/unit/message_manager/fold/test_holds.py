"""Holds: what somebody still has to read stays, in topics and in queues, until he has read it or is gone."""

from __future__ import annotations

import pytest

from antiphon.errors import Unreadable
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state import holds
from antiphon.message_manager.state.acknowledgements import read_acknowledged
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.ranges import Ranges
from antiphon.sim.checkers.restores import what_a_restore_changes
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode
from antiphon.wire.transactions import Consumed
from tests.unit.message_manager.channel import (
    AT_ONCE,
    Channel,
    Client,
    MemoryPayloads,
    batch_of,
    bodies,
    delivered,
    finish,
    numbers_to,
    show,
)

LIMIT_MS = 60_000
AT_ONCE_GONE = '{"retention":"consumed"}'


class Stage:
    """A queue and a topic that keeps nothing for its own sake."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.queue = self.channel.create("orders")
        self.topic = self.channel.create_topic("prices", AT_ONCE_GONE)

    @property
    def state(self) -> ChannelState:
        return self.channel.manager.state

    def get(self, id: int) -> Destination:
        found = self.state.directory.get(id)
        assert found is not None
        return found

    def publish(self, destination: int, count: int = 1) -> int:
        """In one batch; the number of the first."""
        return self.channel.order(self.client.publish(destination, bodies(count)))

    def ack(self, *numbers: int) -> Outcome | None:
        pairs = [(number, number + 1) for number in numbers]
        return self.channel.outcome(self.client.ack(self.queue, *Ranges(pairs)))

    def hold(
        self, name: str, position: int, *destinations: int, consumes: bool = False, acks: bool = False
    ) -> Outcome | None:
        command = self.client.hold(
            name,
            position,
            *destinations,
            limit_ms=LIMIT_MS,
            consumes=consumes,
            acks=acks,
            heard=self.channel.heard,
        )
        return self.channel.outcome(command)

    def release(self, name: str) -> Outcome | None:
        return self.channel.outcome(self.client.release(name, self.channel.heard))

    def stored(self, destination: int) -> list[int]:
        return list(self.get(destination).stored.numbers())

    def live(self, destination: int) -> list[int]:
        return list(self.get(destination).live.numbers())

    def segments(self) -> dict[int, int]:
        return self.channel.manager.live_bytes_by_segment()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def text_of(outcome: Outcome | None) -> str:
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED, outcome
    return outcome.text


# -- heads -----------------------------------------------------------------------------------


def test_the_last_stored_number_never_falls_and_is_the_destinations_own(stage: Stage) -> None:
    assert stage.get(stage.queue).last_stored == stage.get(stage.topic).last_stored == 0
    first = stage.publish(stage.queue, 3)
    stage.publish(stage.topic, 2)
    assert stage.get(stage.queue).last_stored == first + 2
    assert stage.get(stage.topic).last_stored == first + 4
    stage.ack(first, first + 1, first + 2)
    assert stage.get(stage.queue).last_stored == first + 2 and stage.live(stage.queue) == []


def test_what_a_topic_has_trimmed_is_lost_and_what_a_queues_consumer_took_is_not(stage: Stage) -> None:
    assert stage.get(stage.topic).lost_through == 0
    first = stage.publish(stage.topic, 3)
    assert stage.get(stage.topic).lost_through == first + 2
    number = stage.publish(stage.queue)
    stage.ack(number)
    assert stage.get(stage.queue).lost_through == 0
    assert stage.get(stage.topic).lost_through == first + 2, "other destinations do not matter"


def test_the_directory_has_the_number_of_its_last_change(stage: Stage) -> None:
    assert stage.state.directory.version == stage.topic
    stage.channel.create("orders")
    assert stage.state.directory.version == stage.topic, "it was there already"
    made = stage.channel.create("more")
    assert stage.state.directory.version == made
    gone = stage.channel.order(stage.client.delete(made))
    assert stage.state.directory.version == gone
    stage.channel.order(stage.client.delete(made))
    assert stage.state.directory.version == gone, "it was gone already"


# -- to read -----------------------------------------------------------------------------------


def test_a_topic_keeps_what_is_held_until_the_position_has_passed_it(stage: Stage) -> None:
    start = stage.channel.next
    assert stage.hold("spark", start, stage.topic) is None
    first = stage.publish(stage.topic, 4)
    assert stage.stored(stage.topic) == [first, first + 1, first + 2, first + 3]
    assert stage.get(stage.topic).lost_through == 0
    stage.hold("spark", first + 2, stage.topic)
    assert stage.stored(stage.topic) == [first + 2, first + 3]
    assert stage.get(stage.topic).lost_through == first + 1
    stage.release("spark")
    assert stage.stored(stage.topic) == [] and stage.get(stage.topic).lost_through == first + 3


def test_a_queue_keeps_what_is_acknowledged_and_gives_it_to_nobody(stage: Stage) -> None:
    first = stage.publish(stage.queue, 4)
    stage.hold("spark", first + 1, stage.queue)
    stage.channel.register(7, stage.queue)
    stage.channel.flush()
    stage.ack(first, first + 1, first + 2)
    assert stage.live(stage.queue) == [first + 3]
    assert stage.stored(stage.queue) == [first + 1, first + 2, first + 3], "below the position it goes"
    assert delivered(stage.channel.flush()) == []
    stage.channel.claim(1)
    stage.channel.register(8, stage.queue)
    assert numbers_to(stage.channel.flush(), 8) == [first + 3], "nor is it given out in another term"
    stage.hold("spark", first + 2, stage.queue)
    assert stage.stored(stage.queue) == [first + 2, first + 3]


def test_what_is_kept_can_be_read_and_its_segments_stay(stage: Stage) -> None:
    number = stage.publish(stage.queue)
    held = stage.segments()
    stage.hold("spark", number, stage.queue)
    stage.ack(number)
    assert stage.segments() == held
    cut = stage.channel.manager._reader.cut(stage.get(stage.queue), number, number + 1, 1 << 20)
    assert cut is not None and list(batch_of(cut.piece.buffers).bodies()) == [b"m0"]
    stage.release("spark")
    assert stage.segments() == {} and stage.get(stage.queue).bytes == 0
    assert stage.get(stage.queue).stored is stage.get(stage.queue).live


def test_the_slowest_of_several_holders_decides(stage: Stage) -> None:
    first = stage.publish(stage.queue, 4)
    stage.hold("slow", first, stage.queue)
    stage.hold("fast", first + 3)
    stage.ack(*range(first, first + 4))
    assert stage.stored(stage.queue) == [first, first + 1, first + 2, first + 3]
    stage.hold("slow", first + 2, stage.queue)
    assert stage.stored(stage.queue) == [first + 2, first + 3]
    stage.release("slow")
    assert stage.stored(stage.queue) == [first + 3], "the other one holds the whole channel"


def test_a_hold_of_the_whole_channel_covers_what_is_made_later(stage: Stage) -> None:
    stage.hold("spark", stage.channel.next)
    topic = stage.channel.create_topic("later", AT_ONCE_GONE)
    first = stage.publish(topic, 2)
    assert stage.stored(topic) == [first, first + 1]


def test_a_hold_of_one_destination_keeps_nothing_of_another(stage: Stage) -> None:
    stage.hold("spark", 1, stage.queue)
    stage.publish(stage.topic, 2)
    assert stage.stored(stage.topic) == []


def test_a_position_never_moves_back(stage: Stage) -> None:
    first = stage.publish(stage.queue, 3)
    stage.hold("spark", first + 2, stage.queue)
    assert stage.hold("spark", first, stage.queue, stage.topic) is None
    row = stage.state.holds.rows["spark"]
    assert (row.position, row.destinations) == (first + 2, (stage.queue,))


def test_destinations_can_be_added_to_a_hold(stage: Stage) -> None:
    start = stage.channel.next
    stage.hold("spark", start, stage.queue)
    stage.hold("spark", start, stage.queue, stage.topic)
    first = stage.publish(stage.topic)
    assert stage.stored(stage.topic) == [first]


def test_a_subscription_and_a_hold_each_keep_what_they_need(stage: Stage) -> None:
    subscription = stage.channel.order(stage.client.subscribe(stage.topic, "audit"))
    stage.hold("spark", stage.channel.next, stage.topic)
    first = stage.publish(stage.topic, 3)
    stage.hold("spark", first + 2, stage.topic)
    assert stage.stored(stage.topic) == [first, first + 1, first + 2], "the subscription needs them"
    stage.channel.order(stage.client.ack(stage.topic, (first, first + 3), subscription=subscription))
    assert stage.stored(stage.topic) == [first + 2], "the holder needs it"
    stage.release("spark")
    assert stage.stored(stage.topic) == []


# -- time -------------------------------------------------------------------------------------------


def test_a_hold_ends_when_its_holder_was_not_heard_of_for_its_limit(stage: Stage) -> None:
    number = stage.publish(stage.queue)
    stage.hold("spark", number, stage.queue)
    stage.ack(number)
    stage.channel.pass_time(10_000)
    assert stage.state.due_ms() == stage.channel.wall_ms + LIMIT_MS + 1
    stage.channel.pass_time(LIMIT_MS)
    assert stage.stored(stage.queue) == [number]
    stage.channel.pass_time(1)
    assert stage.stored(stage.queue) == [] and not stage.state.holds.rows and stage.segments() == {}


def test_any_word_of_its_holder_renews_it(stage: Stage) -> None:
    number = stage.publish(stage.queue)
    stage.hold("spark", number, stage.queue)
    stage.ack(number)
    for _ in range(3):
        stage.channel.pass_time(LIMIT_MS)
        stage.hold("spark", 1, stage.queue)
        assert stage.state.due_ms() == 0, "its time begins when time is told next"
    stage.channel.pass_time(LIMIT_MS)
    assert stage.stored(stage.queue) == [number]


def test_a_primary_moves_the_time_of_an_idle_channel_for_a_hold(stage: Stage) -> None:
    stage.hold("spark", 1)
    for _ in range(200):
        stage.channel.order_proposals(stage.channel.flush())
        stage.channel.now_ns += 1_000_000_000
        stage.channel.wall_ms += 1_000
    assert not stage.state.holds.rows


# -- what is refused ----------------------------------------------------------------------------------


def test_a_hold_that_cannot_be_is_refused_in_words(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, client = stage.channel, stage.client
    assert "1 to 255 bytes" in text_of(stage.hold("", 1))
    assert "1 to 255 bytes" in text_of(stage.hold("é" * 128, 1))
    assert "lasts 1 to" in text_of(channel.outcome(client.hold("spark", 1, limit_ms=0)))
    assert "lasts 1 to" in text_of(channel.outcome(client.hold("spark", 1, limit_ms=1 << 60)))
    monkeypatch.setattr(holds, "HELD_DESTINATIONS_MAX", 1)
    assert "1 destinations at most" in text_of(stage.hold("spark", 1, stage.queue, stage.topic))
    monkeypatch.setattr(holds, "HOLDS_MAX", 1)
    assert stage.hold("spark", 1) is None
    assert "1 holds in this channel already" in text_of(stage.hold("other", 1))
    assert stage.hold("spark", 2) is None, "one that is there can be renewed"
    for kind in (CommandKind.HOLD, CommandKind.RELEASE):
        text_of(channel.outcome(client.raw(kind, b"\xff")))


def test_destinations_that_are_gone_are_passed_over_unless_there_is_no_other(stage: Stage) -> None:
    outcome = stage.hold("spark", 1, 998, 999)
    assert outcome is not None and outcome.code == OutcomeCode.NO_DESTINATION
    assert stage.hold("spark", 1, 999, stage.queue) is None
    assert stage.state.holds.rows["spark"].destinations == (stage.queue,)


def test_to_release_what_is_not_held_is_fine(stage: Stage) -> None:
    assert stage.release("nobody") is None


def test_a_deleted_destination_is_held_no_more(stage: Stage) -> None:
    stage.publish(stage.queue)
    stage.hold("one", 1, stage.queue)
    stage.hold("both", 1, stage.queue, stage.topic)
    stage.hold("all", 1)
    stage.ack(*stage.live(stage.queue))
    stage.channel.order(stage.client.delete(stage.queue))
    assert {name: row.destinations for name, row in stage.state.holds.rows.items()} == {
        "both": (stage.topic,),
        "all": (),
    }
    assert stage.segments() == {}


# -- checkpoints, space, damage ------------------------------------------------------------------------


def held_stage() -> tuple[Stage, list[int]]:
    """Messages acknowledged and kept, live ones, a trimmed topic, an audit, a consumed queue."""
    stage = Stage()
    first = stage.publish(stage.queue, 3)
    stage.hold("spark", first + 1, stage.queue, stage.topic)
    stage.hold("auditor", first, acks=True)
    stage.publish(stage.topic, 2)
    stage.ack(first, first + 2)
    stage.ack(first)
    more = stage.channel.create("more")
    stage.publish(more, 2)
    stage.hold("taker", 1, more, consumes=True)
    stage.hold("auditor", first + 1, acks=True)
    return stage, [first + 1, first + 2]


def test_a_checkpoint_keeps_holds_and_what_is_kept_for_them() -> None:
    stage, stored = held_stage()
    n = stage.channel.mark()
    digest, data, segments = stage.channel.manager.capture(n)
    again = MessageManager("main", 1, stage.channel.payloads, AT_ONCE)
    again.restore(data)
    assert again.capture(n) == (digest, data, segments)
    assert again.live_bytes_by_segment() == stage.segments()
    queue = again.state.directory.get(stage.queue)
    assert queue is not None and list(queue.stored.numbers()) == stored
    assert list(queue.live.numbers()) == [stored[0]]
    heard = stage.channel.heard
    releases = [stage.client.release(name, heard) for name in ("spark", "auditor")]
    follow(again, stage, n, *releases)
    assert list(queue.stored.numbers()) == [stored[0]]
    assert again.state.digest() == stage.state.digest()


def follow(manager: MessageManager, stage: Stage, n: int, *commands: bytes) -> None:
    stage.channel.order(*commands)
    payloads = MemoryPayloads()
    for entry, payload in stage.channel.log:
        if entry.first > n:
            show(manager, payloads, entry, payload)


def test_every_cut_of_a_state_with_holds_is_refused() -> None:
    stage, _ = held_stage()
    _, data, _ = stage.channel.manager.capture(stage.channel.mark())
    for cut in range(0, len(data), 7):
        with pytest.raises(Unreadable):
            ChannelState.restore(data[:cut])


@pytest.mark.parametrize("way", ["acknowledged", "acknowledged in part", "in a transaction"])
def test_a_position_beyond_the_end_is_refused_and_the_state_goes_on_being_restored(
    stage: Stage, way: str
) -> None:
    """It was taken: acknowledgements below it were kept, and every later checkpoint was refused."""
    own_number = stage.channel.next
    refused = stage.hold("audit", own_number + 1, stage.queue, acks=True)
    assert text_of(refused) == (
        f"position {own_number + 1} lies beyond the end of the channel, which is {own_number}"
    )
    assert "beyond the end" in text_of(stage.hold("audit", (1 << 64) - 1, stage.queue, acks=True))
    assert not stage.state.holds.rows and not stage.state.holds.is_audited
    first = stage.publish(stage.queue, 2)
    if way == "in a transaction":
        stage.channel.order(
            stage.client.tx_commit(0, 0, Consumed(stage.queue, 0, Ranges([(first, first + 1)])))
        )
    else:
        stage.ack(*([first] if way == "acknowledged" else [first, first + 50]))
    assert what_a_restore_changes(stage.state) is None


def test_a_position_up_to_the_holds_own_number_is_taken(stage: Stage) -> None:
    """A client may have read all that was there before its word: a client manager may know less."""
    own_number = stage.channel.next
    assert stage.hold("audit", own_number, stage.queue, acks=True) is None
    first = stage.publish(stage.queue, 2)
    stage.ack(first)
    own_number = stage.channel.next
    assert stage.hold("audit", own_number, stage.queue, acks=True) is None
    assert "beyond the end" in text_of(stage.hold("audit", stage.channel.next + 1, stage.queue, acks=True))
    assert stage.state.holds.rows["audit"].position == own_number, "a word that is refused moves nothing"
    assert what_a_restore_changes(stage.state) is None


def test_acknowledgements_below_the_lowest_position_are_not_kept(stage: Stage) -> None:
    first = stage.publish(stage.queue, 3)
    stage.hold("audit", stage.channel.next, stage.queue, acks=True)
    log = stage.state.holds.acknowledgements
    log.wanted_from = first + 100
    stage.ack(first)
    stage.ack(first + 1, first + 50)
    assert len(log) == 0
    log.wanted_from = stage.channel.next
    stage.ack(first + 2)
    assert len(log) == 1


def test_a_restore_refuses_nothing_that_a_capture_wrote() -> None:
    """Also of a state that should not be: whoever refuses it has no checkpoint at all."""
    stage, stored = held_stage()
    stage.state.holds.rows.clear()
    digest, data = stage.state.capture()
    again = ChannelState.restore(data)
    assert again.digest() == digest
    queue = again.directory.get(stage.queue)
    assert queue is not None and list(queue.stored.numbers()) == stored


def test_a_restore_changes_nothing_after_any_entry_of_a_story_with_holds() -> None:
    stage, _ = held_stage()
    manager = MessageManager("main", 9, MemoryPayloads(), AT_ONCE)
    payloads = MemoryPayloads()
    for entry, payload in stage.channel.log:
        show(manager, payloads, entry, payload)
        assert what_a_restore_changes(manager.state) is None, entry


# -- what comes late -------------------------------------------------------------------------------------


def code_of(outcome: Outcome | None) -> int:
    return OutcomeCode.APPLIED if outcome is None else outcome.code


def test_a_hold_that_was_released_does_not_live_again_when_its_word_comes_late() -> None:
    """It lay in the queue of a client manager that slept; its holder said it again elsewhere, and let go."""
    stage, late = Stage(), Client(0xB2)
    heard = stage.channel.heard
    stuck = late.open() + late.hold("spark", 1, stage.queue, consumes=True, heard=heard)
    assert stage.hold("spark", 1, stage.queue, consumes=True) is None
    assert stage.release("spark") is None
    released = stage.channel.heard
    outcome = stage.channel.outcome(stuck)
    assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.OUTDATED, released)
    assert not stage.state.holds.rows and not stage.state.locks
    again = late.hold("spark", 1, stage.queue, consumes=True, heard=outcome.original)
    assert stage.channel.outcome(again) is None, "whoever has heard of it may hold"


@pytest.mark.parametrize("way", ["released", "expired", "deleted"])
def test_whatever_ended_a_hold_ended_it_for_words_that_were_said_before(stage: Stage, way: str) -> None:
    heard = stage.channel.heard
    more = stage.channel.create("more")
    stage.hold("spark", 1, more)
    if way == "released":
        stage.release("spark")
    elif way == "expired":
        stage.channel.pass_time(1)
        stage.channel.pass_time(LIMIT_MS + 1)
    else:
        stage.channel.order(stage.client.delete(more))
    ended = stage.state.holds.ended
    assert ended == stage.channel.heard and not stage.state.holds.rows
    for name in ("spark", "another"):
        # One number is kept for all: a word under another name is said again, too.
        outcome = stage.channel.outcome(stage.client.hold(name, 1, stage.queue, heard=heard))
        assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.OUTDATED, ended)
    assert stage.channel.outcome(stage.client.hold("spark", 1, stage.queue, heard=ended)) is None


def test_a_late_word_of_a_former_hold_neither_moves_nor_ends_the_present_one(stage: Stage) -> None:
    first = stage.publish(stage.queue, 3)
    stage.hold("spark", first, stage.queue, consumes=True)
    heard = stage.channel.heard
    stage.release("spark")
    stage.hold("spark", first, stage.queue, consumes=True)
    began = stage.channel.heard
    late = stage.client.hold("spark", first + 2, stage.queue, consumes=True, heard=heard)
    assert code_of(stage.channel.outcome(late)) == OutcomeCode.OUTDATED
    assert stage.live(stage.queue) == [first, first + 1, first + 2], "it would have acknowledged two"
    outcome = stage.channel.outcome(stage.client.release("spark", heard))
    assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.OUTDATED, began)
    assert stage.state.holds.rows["spark"].began == began
    assert stage.channel.outcome(stage.client.release("spark", began)) is None
    assert stage.channel.outcome(stage.client.release("spark", 0)) is None, "what is not there is fine"


def test_the_end_of_another_hold_is_nothing_to_a_hold_that_is_there(stage: Stage) -> None:
    stage.hold("spark", 1, stage.queue)
    heard = stage.channel.heard
    stage.hold("archive", 1, stage.queue)
    stage.release("archive")
    assert stage.channel.outcome(stage.client.hold("spark", 2, stage.queue, heard=heard)) is None


def test_nobody_has_heard_of_what_is_still_to_come(stage: Stage) -> None:
    own_number = stage.channel.next
    for heard in (own_number, (1 << 64) - 1):
        outcome = stage.channel.outcome(stage.client.hold("spark", 1, stage.queue, heard=heard))
        assert "nobody can have heard of number" in text_of(outcome)
        own_number = stage.channel.next


def test_where_holds_began_and_ended_is_a_part_of_the_state(stage: Stage) -> None:
    stage.hold("spark", 1, stage.queue)
    stage.hold("archive", 1, stage.queue)
    stage.release("spark")
    again = ChannelState.restore(stage.state.capture()[1])
    assert again.holds.ended == stage.state.holds.ended > again.holds.rows["archive"].began > 0
    assert what_a_restore_changes(stage.state) is None


def test_what_a_transaction_with_nothing_to_acknowledge_locks_is_nothing(stage: Stage) -> None:
    """An empty lock was there, gone with the hold that came after it, and there again after a restore."""
    nothing = Consumed(stage.queue, 0, Ranges())
    stage.channel.order(stage.client.prepare(0, 0, nothing))
    assert stage.state.locks == {}
    assert stage.hold("spark", 1, stage.queue, consumes=True) is None
    assert stage.release("spark") is None
    assert what_a_restore_changes(stage.state) is None


def test_what_is_kept_moves_when_its_segment_is_emptied() -> None:
    stage, stored = held_stage()
    manager, payloads = stage.channel.manager, stage.channel.payloads
    before = manager.capture(stage.channel.mark())[0]
    for segment in [one for one in manager.live_bytes_by_segment() if one != payloads.segment]:
        for old in manager.records_in(segment):
            manager.relocated(old, payloads.keep(payloads.records.pop((old.segment, old.offset))))
        assert segment not in manager.live_bytes_by_segment()
    assert stage.state.digest() == before
    cut = manager._reader.cut(stage.get(stage.queue), stored[1], stored[1] + 1, 1 << 20)
    assert cut is not None and list(batch_of(cut.piece.buffers).bodies()) == [b"m2"]
    assert acknowledged(stage) == told(stage, 1)


def test_a_state_with_holds_can_be_taken_over_by_another_node() -> None:
    stage, stored = held_stage()
    n = stage.channel.mark()
    digest, data, _ = stage.channel.manager.capture(n)
    payloads = MemoryPayloads(records_per_segment=2)
    joiner = MessageManager("main", 9, payloads, AT_ONCE)
    seen, records = joiner.open_state(data)
    assert seen == digest
    source = stage.channel.payloads.records
    moved = {old: payloads.keep(source[old.segment, old.offset]) for old in records}
    assert joiner.move_state(moved)[0] == digest
    joiner.install_state(0, n)
    queue = joiner.state.directory.get(stage.queue)
    assert queue is not None
    cut = joiner._reader.cut(queue, stored[1], stored[1] + 1, 1 << 20)
    assert cut is not None and list(batch_of(cut.piece.buffers).bodies()) == [b"m2"]


# -- to consume ----------------------------------------------------------------------------------------


@pytest.fixture
def consumed() -> Stage:
    """Six messages, of which consumer 7 has got two when "spark" takes the queue for itself."""
    stage = Stage()
    stage.publish(stage.queue, 6)
    stage.channel.register(7, stage.queue, credit=2)
    assert len(delivered(stage.channel.flush())) == 2
    stage.channel.credit(7, 100)
    assert stage.hold("spark", stage.live(stage.queue)[0], stage.queue, consumes=True) is None
    return stage


def test_who_consumes_a_queue_has_it_alone(consumed: Stage) -> None:
    first = consumed.live(consumed.queue)[0]
    consumed.publish(consumed.queue, 2)
    assert delivered(consumed.channel.flush()) == []
    lost = consumed.ack(first, first + 1)
    assert lost is not None and lost.code == OutcomeCode.ACK_LOST
    assert len(consumed.live(consumed.queue)) == 8
    assert delivered(consumed.channel.flush()) == []


def test_what_the_position_passes_is_acknowledged_and_goes(consumed: Stage) -> None:
    numbers = consumed.live(consumed.queue)
    consumed.hold("spark", numbers[4], consumed.queue, consumes=True)
    assert consumed.live(consumed.queue) == consumed.stored(consumed.queue) == numbers[4:]
    assert consumed.get(consumed.queue).acknowledged == 4
    assert delivered(consumed.channel.flush()) == []


def test_what_lies_before_the_first_position_is_not_acknowledged() -> None:
    stage = Stage()
    first = stage.publish(stage.queue, 3)
    stage.hold("spark", first + 2, stage.queue, consumes=True)
    stage.hold("spark", first + 3, stage.queue, consumes=True)
    assert stage.live(stage.queue) == [first, first + 1]


def test_another_holder_keeps_what_is_consumed(consumed: Stage) -> None:
    numbers = consumed.live(consumed.queue)
    consumed.hold("archive", numbers[0])
    consumed.hold("spark", numbers[4], consumed.queue, consumes=True)
    assert consumed.live(consumed.queue) == numbers[4:] and consumed.stored(consumed.queue) == numbers


@pytest.mark.parametrize("end", ["release", "time"])
def test_when_it_ends_consumers_get_what_is_left(consumed: Stage, end: str) -> None:
    numbers = consumed.live(consumed.queue)
    consumed.hold("spark", numbers[3], consumed.queue, consumes=True)
    consumed.ack(numbers[0], numbers[1])
    consumed.channel.flush()
    if end == "release":
        consumed.release("spark")
    else:
        consumed.channel.pass_time(1)
        consumed.channel.pass_time(LIMIT_MS + 1)
    late = consumed.publish(consumed.queue)
    assert numbers_to(consumed.channel.flush(), 7) == [*numbers[3:], late]
    assert consumed.ack(*numbers[3:], late) is None
    assert not consumed.state.locks


def test_a_new_term_knows_who_consumes(consumed: Stage) -> None:
    consumed.channel.claim(1)
    numbers = consumed.live(consumed.queue)
    consumed.channel.register(8, consumed.queue, held=Ranges([(numbers[0], numbers[0] + 1)]))
    assert delivered(consumed.channel.flush()) == []
    consumed.hold("spark", numbers[2], consumed.queue, consumes=True)
    consumed.release("spark")
    assert numbers_to(consumed.channel.flush(), 8) == numbers[2:]


def test_a_restored_replica_knows_who_consumes(consumed: Stage) -> None:
    n = consumed.channel.mark()
    again = MessageManager("main", 9, MemoryPayloads(), AT_ONCE)
    again.restore(consumed.channel.manager.capture(n)[1])
    first = consumed.live(consumed.queue)[0]
    follow(again, consumed, n, consumed.client.ack(consumed.queue, (first, first + 1)))
    assert again.state.digest() == consumed.state.digest()
    follow(again, consumed, again.applied, consumed.client.release("spark", consumed.channel.heard))
    assert not again.state.locks


def test_a_transaction_does_not_consume_from_it(consumed: Stage) -> None:
    first = consumed.live(consumed.queue)[0]
    wanted = Consumed(consumed.queue, 0, Ranges([(first, first + 1)]))
    for command in (consumed.client.prepare(0, 0, wanted), consumed.client.tx_commit(0, 0, wanted)):
        outcome = consumed.channel.outcome(command)
        assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
        assert "is consumed by spark" in outcome.text


def test_a_queue_is_not_taken_from_who_has_it_or_from_a_transaction(consumed: Stage) -> None:
    assert "is consumed by spark" in text_of(consumed.hold("other", 1, consumed.queue, consumes=True))
    consumed.release("spark")
    first = consumed.live(consumed.queue)[0]
    wanted = Consumed(consumed.queue, 0, Ranges([(first, first + 1)]))
    assert consumed.channel.outcome(consumed.client.prepare(0, 0, wanted)) is None
    assert "a transaction" in text_of(consumed.hold("other", 1, consumed.queue, consumes=True))
    consumed.channel.order(finish(consumed.client.session, 1, commits=False))
    assert consumed.hold("other", 1, consumed.queue, consumes=True) is None


def test_exactly_one_queue_can_be_consumed(stage: Stage) -> None:
    for ids in ((), (stage.topic,), (stage.queue, stage.topic)):
        assert "exactly one queue" in text_of(stage.hold("spark", 1, *ids, consumes=True))
    more = stage.channel.create("more")
    assert stage.hold("spark", 1, stage.queue, consumes=True) is None
    assert "another queue" in text_of(stage.hold("spark", 1, more, consumes=True))
    assert "other mode" in text_of(stage.hold("spark", 1, stage.queue))


def test_a_consumed_queue_can_be_deleted(consumed: Stage) -> None:
    consumed.channel.order(consumed.client.delete(consumed.queue))
    assert not consumed.state.holds.rows and not consumed.state.locks
    consumed.channel.pass_time(LIMIT_MS * 2)
    assert delivered(consumed.channel.flush()) == []


# -- acknowledgements ------------------------------------------------------------------------------------


def acknowledged(stage: Stage) -> list[tuple[int, Consumed]]:
    """What the log of acknowledgements has, read from the journal where it lies there."""
    rows = []
    for number, place, told in stage.state.holds.acknowledgements.between(1, stage.channel.next):
        if place is not None:
            payload = stage.channel.payloads.read(place.location)
            told = read_acknowledged(payload[place.offset : place.offset + place.length])
        rows += [(number, one) for one in told]
    return rows


def told(stage: Stage, count: int) -> list[tuple[int, Consumed]]:
    rows = acknowledged(stage)
    assert len(rows) == count
    return rows


def test_acknowledgements_are_kept_for_who_asks_for_them(stage: Stage) -> None:
    first = stage.publish(stage.queue, 4)
    stage.ack(first)
    assert acknowledged(stage) == [], "nobody has asked"
    stage.hold("auditor", first, stage.queue, acks=True)
    subscription = stage.channel.order(stage.client.subscribe(stage.topic, "audit"))
    price = stage.publish(stage.topic)
    stage.channel.order(stage.client.ack(stage.topic, (price, price + 1), subscription=subscription))
    stage.ack(first + 1)
    whole = stage.channel.manager.applied
    stage.ack(first + 1)
    stage.ack(first, first + 2)
    part = stage.channel.manager.applied
    assert acknowledged(stage) == [
        (whole, Consumed(stage.queue, 0, Ranges([(first + 1, first + 2)]))),
        (part, Consumed(stage.queue, 0, Ranges([(first + 2, first + 3)]))),
    ]
    stage.hold("auditor", part, stage.queue, acks=True)
    assert [number for number, _ in acknowledged(stage)] == [part]
    stage.release("auditor")
    assert acknowledged(stage) == [] and len(stage.state.holds.acknowledgements) == 0


def test_what_transactions_and_holders_acknowledge_is_kept_too(stage: Stage) -> None:
    first = stage.publish(stage.queue, 4)
    stage.hold("auditor", first, acks=True)
    one, two, three = (Consumed(stage.queue, 0, Ranges([(n, n + 1)])) for n in range(first, first + 3))
    committed = stage.channel.order(stage.client.tx_commit(0, 0, one))
    stage.channel.order(stage.client.prepare(0, 0, two, transaction=2))
    finished = stage.channel.order(finish(stage.client.session, 2, commits=True))
    stage.hold("spark", first + 2, stage.queue, consumes=True)
    stage.hold("spark", first + 3, stage.queue, consumes=True)
    assert acknowledged(stage) == [
        (committed, one),
        (finished, two),
        (stage.channel.manager.applied, three),
    ]


def test_an_acknowledgement_that_is_kept_keeps_its_segment(stage: Stage) -> None:
    number = stage.publish(stage.queue)
    stage.hold("auditor", number + 1, acks=True)
    stage.ack(number)
    assert stage.stored(stage.queue) == [] and len(stage.segments()) == 1
    stage.release("auditor")
    assert stage.segments() == {}


# -- reports ----------------------------------------------------------------------------------------------


def test_a_report_tells_how_far_each_holder_is_behind(stage: Stage) -> None:
    first = stage.publish(stage.queue, 4)
    stage.hold("archive", first, acks=True)
    stage.hold("spark", first + 3, stage.queue)
    stage.ack(first, first + 3)
    each = stage.get(stage.queue).bytes // 4
    stage.channel.pass_time(1_000)
    stage.channel.pass_time(500)
    archive, spark = stage.state.holds.reports(stage.state.log_time_ms)
    assert archive == {
        "name": "archive",
        "position": first,
        "rows": 4,
        "bytes": 4 * each,
        "age_ms": 500,
        "limit_ms": LIMIT_MS,
        "consume": False,
        "acks": True,
        "destinations": None,
    }
    assert (spark["rows"], spark["bytes"], spark["destinations"]) == (1, each, ["queue:orders"])
