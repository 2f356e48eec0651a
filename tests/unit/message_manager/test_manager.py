"""The message manager as the node sees it: what it announces, proposes, keeps and gives up."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Send
from antiphon.bus.messages import Applied, AppliedGet, Presence
from antiphon.bus.ports import Location
from antiphon.errors import FormatMismatch, Unreadable
from antiphon.message_manager.fold.fold import LOST
from antiphon.message_manager.manager import MessageManager, MessageManagerSettings
from antiphon.message_manager.state import outcomes
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.outcomes import OUTCOMES_MAX, PAGE_MAX
from antiphon.wire.commands import CommandKind, ExpireSession, LogTime, Outcome, OutcomeCode, read_command
from tests.unit.message_manager.channel import (
    AT_ONCE,
    CM,
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    MemoryPayloads,
    applied_of,
    bodies,
    delivered,
    of_node,
    proposals,
    show,
)

EXPIRY_NS = 300 * SECOND_NS


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.flush()
    return destination


def proposed(channel: Channel, kind: CommandKind) -> list[memoryview]:
    commands = [read_command(proposal.command) for proposal in proposals(channel.flush())]
    return [payload for header, payload in commands if header.kind == kind]


# -- announcing ----------------------------------------------------------------------------------


def test_the_primary_announces_what_it_applied_once(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(5)))
    channel.order(client.publish(999, bodies(1)))
    last = channel.manager.applied
    [applied] = applied_of(channel.flush())
    assert (applied.epoch, applied.upto) == (channel.manager.term, last)
    assert applied.exceptions == (Outcome(last, 1, OutcomeCode.NO_DESTINATION),)
    assert applied_of(channel.flush()) == []


def test_a_new_primary_tells_outcomes_of_before_its_claim(client: Client) -> None:
    channel = Channel(begin=False)
    channel.claim(2)
    channel.order(client.open())
    lost = channel.order(client.publish(999, bodies(1)))
    assert channel.flush() == []
    channel.claim(1)
    [applied] = applied_of(channel.flush())
    assert applied.exceptions == (Outcome(lost, 1, OutcomeCode.NO_DESTINATION),)
    assert applied.upto == channel.manager.applied


def test_an_announcement_goes_on_where_the_one_before_ended(channel: Channel, client: Client) -> None:
    channel.flush()
    before = channel.manager.applied
    first = channel.order(client.publish(999, bodies(2)))
    lost = Outcome(first, 2, OutcomeCode.NO_DESTINATION)
    assert applied_of(channel.flush()) == [
        Applied(channel.manager.term, channel.manager.applied, (lost,), after=before)
    ]


def test_a_new_primary_leaves_long_ago_to_those_who_ask(client: Client) -> None:
    channel = Channel(begin=False, records_per_segment=1)
    channel.claim(2)
    stranger = Client(session=0xBAD)
    channel.order(stranger.ack(1, (1, 2)) * 1_000)
    channel.claim(1)
    [applied] = applied_of(channel.flush())
    assert len(applied.exceptions) == 256
    assert applied.after == applied.exceptions[0].first - 1
    assert applied.upto == channel.manager.applied


def test_many_outcomes_are_announced_in_several_messages(channel: Channel) -> None:
    channel.flush()
    before = channel.manager.applied
    channel.order(Client(session=0xBAD).ack(1, (1, 2)) * (PAGE_MAX + 5))
    first, second = applied_of(channel.flush())
    assert (first.after, first.upto, second.after) == (before, before + PAGE_MAX, before + PAGE_MAX)
    assert second.upto == channel.manager.applied
    assert len(first.exceptions + second.exceptions) == PAGE_MAX + 5


def test_what_failed_is_said_before_the_table_forgets_it_also_within_one_step(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 16)
    channel.flush()
    before = channel.manager.applied
    stranger = Client(session=0xBAD)
    for _ in range(30):
        channel.order(stranger.ack(1, (1, 2)) * 4)
    said = applied_of(channel.flush())
    assert channel.manager.state.outcomes.floor > before, "most of it is forgotten by now"
    assert [one.after for one in said[1:]] == [one.upto for one in said[:-1]]
    told = [outcome.first for one in said for outcome in one.exceptions]
    assert told == list(range(before + 1, before + 121))


def test_who_is_primary_no_more_says_nothing_of_what_it_had_to_say(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 16)
    channel.order(Client(session=0xBAD).ack(1, (1, 2)) * 8)
    channel.claim(2)
    assert applied_of(channel.flush()) == []
    channel.claim(1)
    terms = {one.epoch for one in applied_of(channel.flush())}
    assert terms == {channel.manager.term}


def ask(channel: Channel, after: int, sender: int = 9) -> list[Applied]:
    channel.manager.receive(channel.now_ns, sender, AppliedGet(after))
    effects = channel.flush()
    return [effect.message for effect in effects if effect.__class__ is Send and effect.to == sender]


def test_any_replica_answers_what_became_of_numbers(client: Client) -> None:
    channel = Channel(begin=False)
    channel.claim(2)
    channel.order(client.open())
    lost = channel.order(client.publish(999, bodies(1)))
    assert not channel.manager.is_primary
    applied, term = channel.manager.applied, channel.manager.term
    outcome = Outcome(lost, 1, OutcomeCode.NO_DESTINATION)
    assert ask(channel, lost - 1) == [Applied(term, applied, (outcome,), after=lost - 1)]
    assert ask(channel, lost) == [], "it knows of nothing beyond"
    assert ask(channel, 0) == [Applied(term, applied, (outcome,), after=0)]


def test_a_replica_that_began_with_a_checkpoint_answers_the_same(client: Client) -> None:
    channel = Channel()
    channel.order(client.open())
    first = channel.order(client.publish(999, bodies(1)))
    channel.order(client.ack(1, (1, 2)) + client.ack(1, (1, 2)))
    _, state, _ = channel.manager.capture(channel.manager.applied)
    other = Channel(begin=False, node=3)
    other.manager.restore(state)
    assert ask(other, first - 1) == ask(channel, first - 1)
    assert len(ask(other, first - 1)[0].exceptions) == 3


def test_what_is_forgotten_is_said_to_be_so() -> None:
    channel = Channel(records_per_segment=1)
    for _ in range(3):
        channel.order(Client(session=0xBAD).ack(1, (1, 2)) * (OUTCOMES_MAX // 2))
    [answer] = ask(channel, 1)
    assert answer.floor == answer.after > 1
    assert answer.exceptions[0].first == answer.after + 1


def test_an_envelope_whose_payload_is_lost_for_good_leaves_its_numbers_empty(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.flush()
    first = channel.lose(3)
    assert channel.exceptions() == [Outcome(first, 3, OutcomeCode.REFUSED, 0, LOST)]
    assert channel.manager.applied == first + 2
    channel.order(client.publish(queue, bodies(1)))
    assert channel.exceptions() == []


def test_a_claim_of_an_earlier_term_is_void(channel: Channel) -> None:
    term = channel.manager.term
    channel.claim(2)
    channel._counter -= 2
    channel.claim(1)
    assert not channel.manager.is_primary
    assert channel.manager.term > term


def test_entries_are_applied_in_order_and_once(channel: Channel) -> None:
    entry, _ = channel.log[-1]
    with pytest.raises(AssertionError, match="follows"):
        channel.manager.apply(0, 0, entry, None, None)


def test_a_message_meant_for_another_machine_is_a_bug_of_ours(channel: Channel) -> None:
    with pytest.raises(AssertionError):
        channel.say(Presence("a", "b", 0, True, b"", 0))


# -- time ---------------------------------------------------------------------------------------


def test_time_is_ordered_while_there_is_traffic_and_not_more_often(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order_proposals(channel.flush())
    channel.flush()
    assert proposed(channel, CommandKind.LOG_TIME) == []
    channel.order(client.publish(queue, bodies(1)))
    channel.wall_ms += 400
    assert proposed(channel, CommandKind.LOG_TIME) == []
    assert channel.manager.next_deadline_ns() == SECOND_NS
    channel.now_ns, channel.wall_ms = SECOND_NS, 2_000
    effects = channel.flush()
    assert [LogTime.decode(read_command(p.command)[1]).time_ms for p in proposals(effects)] == [2_000]
    channel.order_proposals(effects)
    assert channel.manager.state.log_time_ms == 2_000
    channel.flush()
    assert channel.manager.next_deadline_ns() is None, "the order of time is no traffic itself"


def test_time_goes_on_though_the_wall_clock_has_gone_back(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.now_ns = SECOND_NS
    channel.order(client.publish(queue, bodies(1)))
    assert channel.order_proposals(channel.flush()) == 1
    channel.now_ns, channel.wall_ms = 5 * SECOND_NS, 5
    channel.order(client.publish(queue, bodies(1)))
    assert channel.order_proposals(channel.flush()) == 1
    assert channel.manager.state.log_time_ms == 6_000


# -- sessions that are gone ----------------------------------------------------------------------


def test_a_session_without_a_client_expires_after_a_while(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.lose_client()
    channel.now_ns = EXPIRY_NS - 1
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []
    assert channel.manager.next_deadline_ns() == EXPIRY_NS
    channel.now_ns = EXPIRY_NS
    effects = channel.flush()
    [payload] = [read_command(p.command)[1] for p in proposals(effects)]
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.owner.pid == CM
    assert ExpireSession.decode(payload) == ExpireSession(
        session=SESSION, generation=1, pid=CM, pe=row.owner.pe, term=channel.manager.term
    )
    channel.order_proposals(effects)
    assert channel.manager.status()["sessions"] == 0
    channel.now_ns *= 3
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []


def test_a_lost_proposal_is_made_again(channel: Channel, client: Client, queue: int) -> None:
    channel.lose_client()
    for at in (1, 2, 3):
        channel.now_ns = at * EXPIRY_NS
        assert len(proposed(channel, CommandKind.SESSION_EXPIRE)) == 1


def test_a_session_that_comes_back_does_not_expire(channel: Channel, client: Client, queue: int) -> None:
    channel.lose_client()
    channel.order(client.resume(2))
    channel.now_ns = 2 * EXPIRY_NS
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []


@pytest.mark.parametrize("is_told", [True, False], ids=["resume", "command"])
def test_a_session_does_not_expire_by_a_proposal_made_before_its_client_manager_was_back(
    channel: Channel, client: Client, queue: int, is_told: bool
) -> None:
    channel.fence(CM, channel.manager.term)
    channel.now_ns = EXPIRY_NS
    effects = channel.flush()
    channel.open_producer(CM)
    channel.order(client.resume(1) if is_told else client.publish(queue, bodies(1)))
    channel.flush()

    channel.order_proposals(effects)
    assert [outcome.code for outcome in channel.exceptions()] == [OutcomeCode.STALE]
    row = channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.owner.pid == CM
    channel.now_ns = 3 * EXPIRY_NS
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []


def test_a_session_without_a_client_expires_though_its_client_manager_is_fenced_meanwhile(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.lose_client()
    channel.now_ns = EXPIRY_NS
    effects = channel.flush()
    channel.fence(CM, channel.manager.term)

    channel.order_proposals(effects)
    assert channel.manager.state.sessions.get(SESSION) is None


def test_to_be_told_again_that_a_client_is_gone_does_not_begin_anew(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.lose_client()
    channel.now_ns = EXPIRY_NS - 1
    channel.lose_client()
    channel.now_ns = EXPIRY_NS
    assert len(proposed(channel, CommandKind.SESSION_EXPIRE)) == 1


def test_a_word_of_a_former_generation_detaches_nothing(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.resume(2), pid=7)
    channel.lose_client(generation=1)
    channel.lose_client(session=0xBAD)
    channel.now_ns = 2 * EXPIRY_NS
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []


def test_sessions_of_a_dead_client_manager_expire(channel: Channel, client: Client, queue: int) -> None:
    channel.open_producer(1)
    channel.now_ns = EXPIRY_NS
    assert len(proposed(channel, CommandKind.SESSION_EXPIRE)) == 1


def test_a_new_primary_gives_detached_sessions_their_full_time(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.open_producer(1)
    channel.now_ns = EXPIRY_NS - 1
    channel.claim(1)
    channel.now_ns = EXPIRY_NS
    assert proposed(channel, CommandKind.SESSION_EXPIRE) == []
    channel.now_ns = 2 * EXPIRY_NS
    assert len(proposed(channel, CommandKind.SESSION_EXPIRE)) == 1


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_restored_replica_is_equal_and_goes_on(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.order(client.ack(queue, (first + 1, first + 2)), client.give_back(queue, (first, first + 1)))
    n = channel.mark()
    digest, state, segments = channel.manager.capture(n)
    again = MessageManager("main", 1, channel.payloads, AT_ONCE)
    again.restore(state)
    assert again.capture(n) == (digest, state, segments)
    assert again.destinations() == channel.manager.destinations()
    assert again.live_bytes_by_segment() == channel.manager.live_bytes_by_segment()
    assert not again.is_primary, "who serves, a new claim says"


def test_the_digest_does_not_depend_on_places(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(5)))
    n = channel.mark()
    payloads = MemoryPayloads(records_per_segment=1)
    payloads.keep(b"something of another channel")
    other = MessageManager("main", 2, payloads, AT_ONCE)
    for entry, payload in channel.log:
        show(other, payloads, entry, payload)
    here, there = channel.manager.capture(n), other.capture(n)
    assert here[0] == there[0]
    assert here[1] != there[1]


def test_the_digest_remembers_what_is_no_longer_there(channel: Channel, client: Client, queue: int) -> None:
    """Two queues that are empty by different ways are different."""
    other = Channel()
    other_client = Client()
    other.order(other_client.open())
    other.create("orders")
    for at, (c, cl) in enumerate(((channel, client), (other, other_client))):
        first = c.order(cl.publish(queue, bodies(2, str(at))))
        c.order(cl.ack(queue, (first, first + 2)))
    n = channel.manager.applied
    assert channel.manager.capture(n)[0] != other.manager.capture(n)[0]


def test_the_digest_remembers_that_a_message_came_back(channel: Channel, client: Client, queue: int) -> None:
    other = Channel()
    other_client = Client()
    other.order(other_client.open())
    other.create("orders")
    for c, cl, counted in ((channel, client, True), (other, other_client, False)):
        first = c.order(cl.publish(queue, bodies(2)))
        c.order(cl.give_back(queue, (first, first + 1), counted=counted))
        c.order(cl.ack(queue, (first, first + 2)))
    here, there = (next(iter(c.manager.state.directory)).digest for c in (channel, other))
    assert here != there


def test_time_and_term_survive_in_a_checkpoint(channel: Channel, client: Client, queue: int) -> None:
    channel.order(of_node(LogTime(time_ms=4_711, term=channel.manager.term)))
    _, state, _ = channel.manager.capture(channel.manager.applied)
    again = MessageManager("main", 1, channel.payloads, AT_ONCE)
    again.restore(state)
    for name in ("applied", "term", "primary", "log_time_ms"):
        assert getattr(again.state, name) == getattr(channel.manager.state, name)
    assert again.state.log_time_ms == 4_711


MAGIC = ChannelState().capture()[1][:4]


@pytest.mark.parametrize("start", [b"AMS0", b"AMS ", b"AMSZ"])
def test_a_state_of_another_version_is_told_from_one_that_cannot_be_read(start: bytes) -> None:
    manager = MessageManager("main", 1, MemoryPayloads(), AT_ONCE)
    with pytest.raises(FormatMismatch, match=f"in format {start.decode()}, and .* nothing was changed"):
        manager.restore(start + bytes(100))


@pytest.mark.parametrize("damage", [b"", b"AMS", MAGIC, MAGIC + b"\xff" * 100, b"else" + bytes(100)])
def test_a_state_that_cannot_be_read_is_no_other_version(damage: bytes) -> None:
    with pytest.raises(Unreadable):
        MessageManager("main", 1, MemoryPayloads(), AT_ONCE).restore(damage)


def test_whatever_goes_wrong_in_reading_a_state_makes_it_unreadable(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, state, _ = channel.manager.capture(channel.manager.applied)

    def fail(reader: object) -> None:
        raise KeyError("a fault of the software")

    monkeypatch.setattr("antiphon.message_manager.state.channel_state.LogTimes.read", fail)
    with pytest.raises(Unreadable, match="KeyError: 'a fault of the software'"):
        MessageManager("main", 1, MemoryPayloads(), AT_ONCE).restore(state)
    manager = MessageManager("main", 1, MemoryPayloads(), AT_ONCE)
    assert manager.open_state(state) == (b"", ()), "nor does the state of another node end this one"


def test_every_cut_of_a_state_is_refused(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(3)))
    _, state, _ = channel.manager.capture(channel.manager.applied)
    for end in range(len(state)):
        with pytest.raises(Unreadable):
            MessageManager("main", 1, MemoryPayloads(), AT_ONCE).restore(state[:end])


# -- space -----------------------------------------------------------------------------------------


def test_only_segments_with_live_messages_are_kept(client: Client) -> None:
    channel = Channel(records_per_segment=1)
    channel.order(client.open())
    queue = channel.create("orders")
    firsts = [channel.order(client.publish(queue, bodies(2))) for _ in range(4)]
    segments = tuple(channel.manager.live_bytes_by_segment())
    assert len(segments) == 4
    channel.order(
        client.ack(queue, (firsts[1], firsts[1] + 2)), client.ack(queue, (firsts[2], firsts[2] + 1))
    )
    assert channel.manager.capture(channel.manager.applied)[2] == (segments[0], segments[2], segments[3])


def test_an_emptied_segment_is_referred_to_no_longer(client: Client) -> None:
    channel = Channel(records_per_segment=3)
    channel.order(client.open())
    one, two = channel.create("one"), channel.create("two")
    first = channel.order(client.publish(one, bodies(2, "a")), client.publish(two, bodies(2, "b")))
    channel.order(client.publish(one, bodies(1, "c")))
    [segment] = {channel.manager.state.directory.get(one).index.find(first).location.segment}  # type: ignore[union-attr]
    records = channel.manager.records_in(segment)
    assert records == sorted(records)
    for at, old in enumerate(records):
        new = Location(99, at * 10_000, old.length, old.identity)
        channel.payloads.records[99, at * 10_000] = channel.payloads.records.pop((old.segment, old.offset))
        channel.manager.relocated(old, new)
    assert segment not in channel.manager.live_bytes_by_segment()
    assert channel.manager.records_in(segment) == []
    channel.register(1, one)
    channel.register(2, two)
    assert sorted(body for _, _, body, _ in delivered(channel.flush())) == [b"a0", b"a1", b"b0", b"b1", b"c0"]


def test_a_record_may_be_moved_without_having_been_asked_for(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    stored = channel.manager.state.directory.get(queue)
    assert stored is not None
    old = stored.index.find(first).location
    channel.manager.relocated(old, Location(50, 0, old.length, old.identity))
    assert stored.index.find(first).location == Location(50, 0, old.length, old.identity)


# -- questions ----------------------------------------------------------------------------------------


def test_destinations_are_told_in_the_words_of_the_public_surface(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, [bytes(100)] * 3))
    channel.register(1, queue, credit=2)
    channel.flush()
    [row] = channel.manager.destinations()
    size = row.pop("bytes")
    assert 300 < size < 600
    assert row == {
        "name": "queue:orders",
        "channel": "main",
        "channels": (),
        "temporary": False,
        "messages": 3,
        "in_flight": 2,
        "consumers": 1,
        "published": 3,
        "acknowledged": 0,
        "expired": 0,
        "dropped": 0,
        "dead": 0,
        "purged": 0,
        "duplicates": 0,
        "blocked": False,
        "subscriptions": [],
    }


def test_an_empty_queue_weighs_nothing(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(7)))
    channel.order(
        client.ack(queue, (first + 2, first + 3)),
        client.ack(queue, (first, first + 2), (first + 3, first + 7)),
    )
    assert channel.manager.destinations()[0]["bytes"] == 0


def test_what_does_not_exist_is_not_found(channel: Channel) -> None:
    assert channel.manager.find("queue:nowhere") is None


def test_status_tells_where_the_replica_stands(channel: Channel, client: Client, queue: int) -> None:
    status = channel.manager.status()
    assert (status["applied"], status["is_primary"], status["sessions"], status["destinations"]) == (
        4,
        True,
        1,
        1,
    )


def test_settings_have_defaults() -> None:
    assert MessageManager("main", 1, MemoryPayloads()).settings == MessageManagerSettings()
