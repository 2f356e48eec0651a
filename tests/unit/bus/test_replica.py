"""All roles of a node that is alone: the normal commit as a transcript, and the long run."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.codec import decode, encode
from antiphon.bus.effects import (
    Append,
    Apply,
    DataRecord,
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    Installed,
    Multicast,
    OrderRecord,
    PrimaryChanged,
    ReleaseSpace,
    Send,
    SpaceChanged,
    SuperblockRecord,
    TakeCheckpoint,
    Ticked,
    WriteCheckpoint,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.records import BaseMoved, EntriesAppended, EpochStarted, decode_order
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from tests.stage import RUN, MemoryPayloads, OneNode, envelope

TRANSCRIPT = """
# The node starts with an empty disk. It is alone, so it stands at once.
start
----
write claimed=1@1

sync
----
say Seal 1@1
write promised=1@1

sync
----
say SealOk log=- last=0
say EpochStart from=1 entries=0
write epoch 1@1 keep=0 + []

# Enough commit servers hold the (empty) log in the new epoch: it leads, and claims the primary's term.
sync
----
say CommitAcknowledge last=0
say Heartbeat committed=0
say CommitSubmit prev=0 [1 PRIMARY_CLAIM]
say HeartbeatAck
write order 0 + [1 PRIMARY_CLAIM]

sync
----
say CommitAcknowledge last=1
say Commit [1 PRIMARY_CLAIM]
apply 1 PRIMARY_CLAIM
primary 1 in term 1@1

# The first envelope opens the producer's run. Its own number does not exist yet, so it waits.
submit 1
----
open
say CommitSubmit prev=1 [2 PRODUCER_OPEN]
write order 1 + [2 PRODUCER_OPEN]

submit 2, with three commands
----
nothing

# The run is open: both envelopes go to the data server at once, and are numbered: one submit, one record.
sync
----
say CommitAcknowledge last=2
say Commit [2 PRODUCER_OPEN]
say CommitSubmit prev=2 [3 DATA, 4-6 DATA]
apply 2 PRODUCER_OPEN
send data 2.1 ts=2
send data 2.2 ts=2
write data 2.1
write data 2.2
write order 2 + [3 DATA, 4-6 DATA]

# Durable: one acknowledgement, one commit for both.
sync
----
say CommitAcknowledge last=6
say Commit [3 DATA, 4-6 DATA]
apply 3 DATA
apply 4-6 DATA
committed 1 at 3
committed 2 at 4-6
confirmed 1
confirmed 2
"""


def test_the_normal_commit_reads_like_its_transcript() -> None:
    node = OneNode()
    lines = TRANSCRIPT.strip().splitlines()
    asked, told, expected = "", [], []
    for line in [*lines, "end"]:
        if line.startswith("#") or line in ("", "----"):
            continue
        if line.split(",")[0].split(" ")[0] in ("start", "sync", "submit", "end"):
            assert told == expected, f"after {asked!r}"
            asked, expected = line, []
            told = play(node, line) if line != "end" else []
        else:
            expected.append(line)


def play(node: OneNode, line: str) -> list[str]:
    said = len(node.said)
    if line == "sync":
        effects = node.sync()
    elif line.startswith("submit"):
        tag = int(line.split(",")[0].removeprefix("submit "))
        effects = node.step(envelope(tag, 3 if "three" in line else 1))
    else:
        effects = node.step()
    spoken = ["say " + words(message) for message in node.said[said:]]
    done = [text for effect in effects if (text := describe(effect))]
    # What roles say to each other happens inside the step, before its effects are carried out. Only
    # what the producer says lies in between; it is told with the effects.
    opening = [text for text in done if text == "open"]
    return (opening + spoken + [text for text in done if text != "open"]) or ["nothing"]


def epoch_words(epoch: int) -> str:
    return f"{epoch >> 16}@{epoch & 0xFFFF}" if epoch else "-"


def entry_words(entries: Any) -> str:
    parts = []
    for entry in entries:
        numbers = f"{entry.first}-{entry.last}" if entry.count > 1 else f"{entry.first}"
        parts.append(f"{numbers} {entry.kind.name}")
    return "[" + ", ".join(parts) + "]"


def words(message: m.BusMessage) -> str:
    name = type(message).__name__
    match message:
        case m.Seal(epoch):
            return f"{name} {epoch_words(epoch)}"
        case m.SealOk(log_epoch=log_epoch, last=last):
            return f"{name} log={epoch_words(log_epoch)} last={last}"
        case m.EpochStart(from_seq=start, entries=entries):
            return f"{name} from={start} entries={len(entries)}"
        case m.CommitAcknowledge(last=last):
            return f"{name} last={last}"
        case m.Heartbeat(committed_upto=upto):
            return f"{name} committed={upto}"
        case m.CommitSubmit(prev=prev, entries=entries):
            return f"{name} prev={prev} {entry_words(entries)}"
        case m.Commit(entries=entries):
            return f"{name} {entry_words(entries)}"
        case m.DataReport(items=items):
            return f"{name} [{' '.join(f'{item.mid.pe}.{item.mid.pseq}' for item in items)}]"
        case _:
            return name


def describe(effect: Effect) -> str:
    match effect:
        case Append(_, SuperblockRecord(promised, claimed)):
            return (
                f"write promised={epoch_words(promised)}"
                if promised
                else f"write claimed={epoch_words(claimed)}"
            )
        case Append(_, DataRecord(mid=mid)):
            return f"write data {mid.pe}.{mid.pseq}"
        case Append(_, OrderRecord(body=body)):
            match decode_order(body):
                case EntriesAppended(_, prev, entries):
                    return f"write order {prev} + {entry_words(entries)}"
                case EpochStarted(epoch, keep, entries):
                    return f"write epoch {epoch_words(epoch)} keep={keep} + {entry_words(entries)}"
        case Apply(entry):
            return f"apply {entry_words([entry])[1:-1]}"
        case PrimaryChanged(term, primary):
            return f"primary {primary} in term {epoch_words(term)}"
        case Multicast(m.Data(mid=mid, ts=ts)):
            return f"send data {mid.pe}.{mid.pseq} ts={ts}"
        case Multicast(m.ProducerOpen()):
            return "open"
        case EnvelopeCommitted(tag, first, count):
            return f"committed {tag} at {first}" + (f"-{first + count - 1}" if count > 1 else "")
        case EnvelopeConfirmed(tag):
            return f"confirmed {tag}"
    return ""


# -- properties of the whole ------------------------------------------------------------------------


ONE_ROUND = [m.CommitSubmit, m.CommitAcknowledge, m.Commit]


@pytest.mark.parametrize(
    ("one_round", "syncs_needed", "kinds"), [(1, 1, ONE_ROUND), (0, 2, [m.DataReport, *ONE_ROUND])]
)
def test_a_step_answers_a_whole_batch_with_one_message_of_each_kind(
    one_round: int, syncs_needed: int, kinds: list[type]
) -> None:
    node = OneNode(GroupConfig.of("main", (1,), one_round=one_round))
    node.step(envelope(0))
    node.settle()
    del node.said[:]
    # As many as find room in one record of the order.
    node.step(*(envelope(tag) for tag in range(1, 41)))
    syncs = 0
    while node.disk.unsynced:
        node.sync()
        syncs += 1
    assert syncs == syncs_needed, "one for data and order, or one for each"
    assert [type(message) for message in node.said] == kinds
    assert node.confirmed == list(range(41))


def test_every_message_survives_the_codec_on_its_way() -> None:
    node = OneNode(GroupConfig.of("main", (1,), checkpoint_entries=5))

    def through_the_codec(message: m.BusMessage) -> m.BusMessage:
        header, back = decode(encode(message, "main", 1, 1, RUN))
        assert header[:4] == ("main", 1, 1, RUN)
        assert back == message
        return back

    node.replica.loopback = through_the_codec
    for tag in range(30):
        node.step(envelope(tag, 1 + tag % 3))
        node.settle()
    node.wait_ms(200)
    assert node.confirmed == list(range(30))
    assert node.crash().replica.last == node.replica.last


def test_an_idle_node_only_beats() -> None:
    node = OneNode()
    node.settle()
    before = len(node.effects)
    node.wait_ms(1_000)
    kinds = {
        type(effect.message).__name__ for effect in node.effects[before:] if isinstance(effect, Multicast)
    }
    assert kinds == {"Heartbeat"}
    assert 1_000 // 150 < len(node.effects[before:]) < 10, "and seldom, when it has told everything"
    assert node.replica.state is State.LEADING


def test_the_first_step_is_due_before_any_event() -> None:
    node = OneNode()
    assert node.replica.next_deadline_ns() == 0
    node.step(Ticked())
    deadline = node.replica.next_deadline_ns()
    assert deadline is not None and deadline > node.now_ns


def test_a_slow_disk_makes_nothing_go_wrong() -> None:
    node = OneNode()
    node.settle()
    node.step(envelope(1), envelope(2))
    node.wait_ms(5_000, syncs=False)
    node.settle()
    node.wait_ms(1_000)
    node.settle()
    assert node.confirmed == [1, 2]
    assert len([e for e in node.applied if e.kind is EntryKind.DATA]) == 2
    assert node.replica.epoch == 1 << 16 | 1, "nobody stood against nobody"


def test_nothing_goes_to_a_producer_but_what_is_meant_for_it() -> None:
    node = OneNode()
    node.step(envelope(1))
    node.settle()
    node.wait_ms(1_000)
    sends = {type(effect.message) for effect in node.effects if isinstance(effect, Send)}
    assert sends <= {m.ReportNack, m.Published, m.ProducerOpened, m.FetchIdReply}


# -- checkpoints ------------------------------------------------------------------------------------


def checkpointed(envelopes: int, every: int = 10) -> OneNode:
    node = OneNode(GroupConfig.of("main", (1,), checkpoint_entries=every))
    for tag in range(envelopes):
        node.step(envelope(tag))
        node.settle()
    return node


def test_a_checkpoint_becomes_stable_and_the_one_before_it_the_base() -> None:
    node = checkpointed(45)
    marks = [entry.last for entry in node.applied if entry.kind is EntryKind.CHECKPOINT_MARK]
    stables = [entry for entry in node.applied if entry.kind is EntryKind.CHECKPOINT_STABLE]
    assert len(marks) >= 4 and len(stables) == len(marks)
    assert [effect.n for effect in node.seen(TakeCheckpoint)] == marks
    assert [effect.n for effect in node.seen(WriteCheckpoint)] == marks
    assert [effect.base for effect in node.seen(ReleaseSpace)] == marks[:-1]
    assert node.replica.base == marks[-2]
    moves = [
        body
        for append in node.disk.synced
        if isinstance(append.record, OrderRecord)
        and isinstance(body := decode_order(append.record.body), BaseMoved)
    ]
    assert [move.base for move in moves] == marks[:-1]


def test_when_room_is_low_two_checkpoints_free_what_nobody_needs_and_a_third_would_not() -> None:
    node = checkpointed(5, every=1_000)
    assert node.seen(TakeCheckpoint) == []
    for taken in (1, 2, 2, 2):
        node.step(SpaceChanged(True))
        node.settle()
        assert len(node.seen(TakeCheckpoint)) == taken
    first, _ = [effect.n for effect in node.seen(TakeCheckpoint)]
    assert [effect.base for effect in node.seen(ReleaseSpace)] == [first]
    node.step(envelope(77))
    node.settle()
    node.step(SpaceChanged(True))
    node.settle()
    assert len(node.seen(TakeCheckpoint)) == 3, "something happened since"


def test_when_room_is_low_one_checkpoint_is_on_its_way_at_a_time() -> None:
    node = checkpointed(5, every=1_000)
    node.step(SpaceChanged(True))
    node.step(SpaceChanged(True))
    node.settle()
    assert len(node.seen(TakeCheckpoint)) == 1
    node.step(SpaceChanged(False))
    node.settle()
    assert len(node.seen(TakeCheckpoint)) == 1


def test_space_is_released_only_after_the_new_base_is_durable() -> None:
    node = checkpointed(0)
    bases: list[int] = []
    for tag in range(40):
        effects = node.step(envelope(tag))
        while node.disk.unsynced:
            written = [
                decode_order(a.record.body) for a in node.disk.unsynced if isinstance(a.record, OrderRecord)
            ]
            bases += [body.base for body in written if isinstance(body, BaseMoved)]
            effects = node.sync()
            for effect in effects:
                if isinstance(effect, ReleaseSpace):
                    assert effect.base in bases
            assert all(isinstance(effect, ReleaseSpace) is False or bases for effect in effects)
    assert node.disk.released == bases[-1]


@pytest.mark.parametrize("envelopes", [3, 12, 25, 45, 47])
def test_a_crash_loses_nothing_that_was_confirmed(envelopes: int) -> None:
    before = checkpointed(envelopes)
    after = before.crash()
    after.settle()
    assert after.recovered is not None
    start = after.recovered.applied
    assert start == (before.disk.checkpoints[-1].n if before.disk.checkpoints else 0)
    again = [entry for entry in before.applied if entry.last > start]
    assert after.applied[: len(again)] == again, "what was applied is applied again, the same"
    assert after.replica.is_serving
    assert after.replica.claimed_after == before.replica.last
    after.step(envelope(1_000))
    after.settle()
    assert after.confirmed == [1_000]


def test_a_damaged_checkpoint_leaves_the_one_before_to_fall_back_on() -> None:
    before = checkpointed(45)
    before.disk.checkpoints.pop()
    after = before.crash()
    after.settle()
    assert after.recovered is not None
    assert after.recovered.applied == before.disk.checkpoints[-1].n == after.recovered.base
    again = [entry for entry in before.applied if entry.last > after.recovered.applied]
    assert after.applied[: len(again)] == again


def test_many_lives_end_in_one_order() -> None:
    node = checkpointed(0, every=7)
    history: dict[int, object] = {}
    for life in range(12):
        for tag in range(life % 5):
            node.step(envelope(tag, 1 + tag))
            if (life + tag) % 3:
                node.settle()
        node.sync()
        for entry in node.applied:
            assert history.setdefault(entry.first, entry) == entry
        node = node.crash(run_id=b"life%012d" % life)
        node.settle()
    assert node.replica.is_serving
    assert len(history) > 20


def test_a_node_knows_how_it_stands() -> None:
    node = checkpointed(3)
    replica = node.replica
    assert (replica.state, replica.primary, replica.is_serving) == (State.LEADING, 1, True)
    assert replica.applied == replica.committed_upto == replica.last == 5
    assert replica.term == replica.epoch == replica.log_epoch == replica.promised
    assert (replica.base, replica.unsettled) == (0, 0)
    assert node.now_ns == 1_000 * MS


def test_a_checkpoint_for_the_log_alone_leaves_the_state_where_it_is() -> None:
    config = GroupConfig.of("main", (1, 2, 3))
    replica = Replica(config, 3, RUN, MemoryPayloads(), JournalCounter())
    replica.step(0, [])
    replica._member.applied = 150
    replica._checkpoint_server.need(90)
    replica._take_installed(Installed(100, Ledger().encode()))
    effects = replica.step(MS, [])
    bodies = [
        one.record.body for one in effects if isinstance(one, Append) and isinstance(one.record, OrderRecord)
    ]
    assert [decode_order(body).base for body in bodies] == [100]  # type: ignore[union-attr]
    assert replica.applied == 150
    assert replica._checkpoint_server.needed_n == 0
