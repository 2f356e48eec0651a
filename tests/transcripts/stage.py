"""A stage for stories: real replicas and producers of three nodes, moved step by step, told line by line.

Nothing happens by itself. `settle` delivers what was sent, in the order sent, and lets one disk after the
other sync when no message is left; time stands still meanwhile. `wait` lets time pass, from deadline to
deadline, until something is true. What is lost, held back, stalled or crashed is said by the story. Chance is
calm: delays drawn by lot have their shortest length and choices are made in turn, so that a transcript
changes when the protocol does.

A line is printed when a message is sent, with its fate if that is not arrival; when a disk has synced; when
an entry is applied; when an envelope is confirmed. Heartbeats are shown when they tell something new, their
answers never.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    CheckpointRead,
    CheckpointWritten,
    ConfigProposed,
    CopyRecord,
    DataRecord,
    DropState,
    EnvelopeConfirmed,
    Event,
    InstallState,
    LogDamaged,
    MoveState,
    Multicast,
    OpenState,
    ReadCheckpoint,
    Received,
    Reconfigured,
    Send,
    Submitted,
    SuperblockRecord,
    Synced,
    TakeCheckpoint,
    WriteCheckpoint,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import RecoveredReplica, recover
from antiphon.bus.replica import Replica
from antiphon.bus.schema import Machine, heard_by
from antiphon.bus.sequencer import State
from antiphon.journal.checkpoints import Checkpoint
from tests.transcripts.shelf import Shelf, StagePayloads
from tests.transcripts.wording import Wording, epoch_name, kind_name, letter, letters
from tests.unit.bus.stage import MemoryPayloads, StageDisk, command

FOR_PRODUCER = heard_by(Machine.PRODUCER)
NEVER_SHOWN = m.HeartbeatAck | m.Presence | m.AppliedGet
WIDTH = 100


def calm_chance(patch: pytest.MonkeyPatch) -> None:
    """No lots are drawn: the shortest delay, and each choice in its turn."""

    def in_turn(self: Chance, choices: tuple[int, ...]) -> int:
        self._state += 1
        return choices[(self._state - 1) % len(choices)]

    patch.setattr(Chance, "of", classmethod(lambda cls, *parts: cls(0)))
    patch.setattr(Chance, "below", lambda self, bound: 0)
    patch.setattr(Chance, "one_of", in_turn)


@dataclass(frozen=True)
class SaidHere:
    """A role of a node said this to another role of it."""

    message: m.BusMessage


class OverheardReplica(Replica):
    """Tells in its place what its roles say to each other; otherwise the same."""

    def _send(self, seat: Any, effect: Send, out: list[Any]) -> None:
        if effect.to == self.node:
            out.append(SaidHere(effect.message))
        super()._send(seat, effect, out)


def disk_id(node: int, number: int = 1) -> bytes:
    return b"%s's disk no. %03d" % (letter(node).encode(), number)


def found_on(disk: StageDisk, payloads: MemoryPayloads, *, keeps_state: bool = True) -> RecoveredReplica:
    """What a life begins with; copies belong to checkpoints and are not among the envelopes."""
    synced = [append for append in disk.synced if not isinstance(append.record, CopyRecord)]
    return recover(StageDisk(synced, [], disk.checkpoints).found(), payloads, keeps_state=keeps_state)


class Life:
    """One life of one node: its machines, its disk, and what they have not been told yet."""

    def __init__(
        self,
        stage: Stage,
        config: GroupConfig,
        node: int,
        disk: StageDisk,
        disk_number: int = 1,
        number: int = 1,
    ) -> None:
        self.stage, self.config, self.node = stage, config, node
        self.disk, self.disk_number, self.number = disk, disk_number, number
        self.payloads = StagePayloads()
        self._write_payloads(disk.synced)
        run_id = b"node %s, life %03d" % (letter(node).encode(), number)
        recovered = found_on(disk, self.payloads, keeps_state=node in config.data_servers)
        self.shelf = Shelf(self.payloads, recovered.manager_state)
        self.replica = OverheardReplica(
            config, node, run_id, self.payloads, JournalCounter(), recovered, disk_id=self.disk_id
        )
        self.producer = BusProducer(config, node, run_id)
        # Whom a multicast reaches. It changes with `Reconfigured`, in its place among the effects: what was
        # said before still reaches those who leave.
        self.members = self.replica.config.nodes
        self.is_running = True
        self.is_paused = False
        self.is_stalled = False
        # In which term we have said how far we applied, and how far.
        self._told = (0, 0)
        self._replica_hears: list[Event] = []
        self._producer_hears: list[Event] = []

    def take(self, *events: Event) -> None:
        """Step both machines until neither has anything left to say on this node."""
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, m.AppliedGet):
                self.stage.carry(self.node, (event.sender,), self._applied_after(event.message.after))
                continue
            if not isinstance(event, Submitted):
                self._replica_hears.append(event)
            if isinstance(event, Submitted | Received):
                self._producer_hears.append(event)
        is_first = True
        while is_first or self._replica_hears or self._producer_hears:
            is_first = False
            heard, self._replica_hears = self._replica_hears, []
            self._perform(self.replica.step(self.stage.now_ns, heard), self._producer_hears)
            heard, self._producer_hears = self._producer_hears, []
            heard = [e for e in heard if not isinstance(e, Received) or type(e.message) in FOR_PRODUCER]
            self._perform(self.producer.step(self.stage.now_ns, heard), self._replica_hears)

    @property
    def disk_id(self) -> bytes:
        return disk_id(self.node, self.disk_number)

    def next_deadline_ns(self) -> int:
        deadlines = (self.replica.next_deadline_ns(), self.producer.next_deadline_ns())
        return min((deadline for deadline in deadlines if deadline is not None), default=1 << 62)

    def sync(self) -> None:
        """Everything written so far becomes durable, and the machines are told."""
        records = [append.record for append in self.disk.unsynced]
        words = self.stage.wording.records(records, self._durable_superblock())
        self.stage.tell(f"{letter(self.node)} disk", f"durable: {words}")
        index = self.disk.unsynced[-1].index
        self.disk.synced += self.disk.unsynced
        self.disk.unsynced = []
        self.take(Synced(index))

    def _durable_superblock(self) -> SuperblockRecord:
        """What was promised and claimed before; that an epoch began here is a promise, too."""
        found = found_on(self.disk, MemoryPayloads())
        return SuperblockRecord(found.promised, found.epoch_claimed)

    # -- what the machines want --------------------------------------------------------------------

    def _perform(self, effects: list[Any], others_hear: list[Event]) -> None:
        """Do what one machine asked for; `others_hear` is the inbox of the other one on this node."""
        applied: list[Entry] = []
        for effect in effects:
            match effect:
                case Append():
                    self.disk.unsynced.append(effect)
                    self._write_payloads([effect])
                case SaidHere(message):
                    self.stage.carry(self.node, (self.node,), message)
                case Send(to, message) if to == self.node:
                    others_hear.append(Received(self.node, message, self.disk_id))
                    if others_hear is self._replica_hears:
                        self.stage.carry(self.node, (to,), message)
                case Send(to, message):
                    self.stage.carry(self.node, (to,), message)
                case Multicast(message):
                    self._multicast(message, others_hear)
                case Apply(entry, _, location):
                    self.shelf.apply(entry, location)
                    applied.append(entry)
                case EnvelopeConfirmed(tag, first):
                    self.stage.confirm(self.node, tag, first)
                case Reconfigured(config):
                    self.producer.reconfigure(config)
                    self.members = config.nodes
                    self.stage.tell(letter(self.node), f"goes over to configuration {config.config_id}")
                case Alarm(text):
                    self.stage.tell(letter(self.node), f"ALARM {text}")
                case _:
                    self._keep_state(effect)
        if applied:
            self._on_applied(applied)

    def _keep_state(self, effect: Any) -> None:
        """What concerns checkpoints; what is asked of the application it answers at once."""
        hears, shelf = self._replica_hears, self.shelf
        match effect:
            case TakeCheckpoint(n):
                hears.append(shelf.capture(n))
            case WriteCheckpoint(n, digest, state, segments):
                self.disk.checkpoints.append(Checkpoint(n, digest, state, segments))
                self.stage.tell(f"{letter(self.node)} disk", f"durable: checkpoint {n}")
                hears.append(CheckpointWritten(n))
            case ReadCheckpoint(n, offset, length, to):
                file = next(one for one in self.disk.checkpoints if one.n == n)
                hears.append(CheckpointRead(n, offset, file.state[offset : offset + length], to))
            case OpenState(n, state):
                hears.append(shelf.open(n, state))
            case MoveState(n, moved):
                hears.append(shelf.move(n, dict(moved)))
            case InstallState(n):
                shelf.install()
                self.stage.tell(letter(self.node), f"stands behind {n} from now on")
            case DropState():
                shelf.drop()

    def _write_payloads(self, appends: list[Append]) -> None:
        for append in appends:
            if isinstance(append.record, DataRecord):
                self.payloads.write(append.record)
            elif isinstance(append.record, CopyRecord):
                self.payloads.write_copy(append.index, append.record)

    def _multicast(self, message: m.BusMessage, others_hear: list[Event]) -> None:
        others_hear.append(Received(self.node, message, self.disk_id))
        self.stage.carry(self.node, self.members, message)
        if isinstance(message, m.Heartbeat) and self.replica.is_serving:
            # The primary repeats with its heartbeat how far it has applied.
            self._multicast(self._applied_after(self.replica.applied), self._producer_hears)

    def _on_applied(self, entries: list[Entry]) -> None:
        self.stage.tell(letter(self.node), f"applies {self.stage.wording.entries(entries)}")
        if self.replica.is_serving:
            # A new primary tells from the beginning: nobody knows what the one before it had said.
            after = self._told[1] if self._told[0] == self.replica.term else 0
            self._told = (self.replica.term, self.replica.applied)
            self._multicast(self._applied_after(after), self._producer_hears)

    def _applied_after(self, after: int) -> m.Applied:
        return m.Applied(self.replica.epoch, self.replica.applied, (), after)


def _state_of(life: Life) -> str:
    if life.is_running:
        replica = life.replica
        does = "leads" if replica.state is State.LEADING else "follows"
        log = f"log of {epoch_name(replica.log_epoch)} through {replica.last}"
        promised = epoch_name(replica.promised)
        return f"{does} {epoch_name(replica.epoch)}; promised {promised}; {log}; applied {replica.applied}"
    found = found_on(life.disk, MemoryPayloads())
    does = "stands still" if life.is_paused else "is down"
    log = f"log of {epoch_name(found.log_epoch)} through {found.log.last}"
    return f"{does}; its disk: promised {epoch_name(found.promised)}, {log}"


@dataclass
class _Fate:
    """What becomes of the next messages of a kind on a link."""

    sender: str
    to: str
    kind: type
    word: str
    times: int

    def concerns(self, sender: int, to: int, message: m.BusMessage) -> bool:
        return (self.sender, self.to) == (letter(sender), letter(to)) and isinstance(message, self.kind)


class Stage:
    """Three nodes, the links between them, and the lines that tell what happened."""

    def __init__(self, introduction: str, **settings: Any) -> None:
        # Nothing is repeated for the sake of repeating: a new epoch brings all reports anyway.
        nodes = (1, 2, 3)
        listed: dict[str, Any] = {"disk_ids": tuple(disk_id(node) for node in nodes), "rereport_ms": 5_000}
        self.config = GroupConfig.of("main", nodes, **{**listed, **settings})
        self.wording = Wording()
        self.now_ns = 1_000 * MS
        self.lines: list[str] = introduction.strip().splitlines()
        self._is_quiet = False
        self._turn = 0
        self._queue: deque[tuple[int, int, m.BusMessage]] = deque()
        self._held: list[tuple[int, int, m.BusMessage]] = []
        self._fates: list[_Fate] = []
        self._cut: set[tuple[int, int]] = set()
        self._tags: dict[tuple[int, int], str] = {}
        self._news: dict[tuple[int, str], tuple[int, int]] = {}
        self._in_vain: list[tuple[int, m.BusMessage]] = []
        # The message that was told last, and to whom.
        self._row: tuple[int, m.BusMessage, dict[int, str]] | None = None
        self.confirmed: list[str] = []
        self.lives = {node: Life(self, self.config, node, StageDisk()) for node in nodes}

    def __getitem__(self, name: str) -> Life:
        return self.lives[ord(name) - ord("A") + 1]

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines) + "\n"

    # -- what the story says -----------------------------------------------------------------------

    def say(self, prose: str) -> None:
        """A paragraph for the reader."""
        self._leave_a_line()
        self.lines += [*textwrap.wrap(" ".join(prose.split()), WIDTH), ""]

    def begin(self, *producers: str) -> None:
        """Not told: A comes to lead, and each of these nodes publishes one envelope."""
        self._is_quiet = True
        self.wait(lambda: self["A"].replica.is_serving)
        for name in producers:
            self.publish(name, f"first of {name}")
            self.settle()
        self._is_quiet = False

    def publish(self, name: str, *envelopes: str) -> None:
        """A part of the node hands envelopes to its producer."""
        life = self[name]
        submitted = []
        for envelope in envelopes:
            tag = len(self._tags) + 1
            self._tags[life.node, tag] = envelope
            self.tell(name, f'publishes "{envelope}"')
            submitted.append(Submitted(tag, command(envelope), 1))
        life.take(*submitted)

    def publish_untold(self, name: str, *envelopes: str) -> None:
        """The same one after the other, and everything that follows, without a word."""
        self._is_quiet = True
        for envelope in envelopes:
            self.publish(name, envelope)
            self.wait_confirmed(envelope)
        self._is_quiet = False

    def lose(self, sender: str, to: str, kind: type, times: int = 1) -> None:
        """The next messages of this kind on this link are lost."""
        self._fates.append(_Fate(sender, to, kind, "lost", times))

    def hold(self, sender: str, to: str, kind: type, times: int = 1) -> None:
        """The next messages of this kind on this link stay under way until `release`."""
        self._fates.append(_Fate(sender, to, kind, "held back", times))

    def release(self) -> None:
        """What was held back arrives now."""
        for sender, to, message in self._held:
            self.tell(f"{letter(sender)} -> {letter(to)}", f"at last {self.wording.message(message)}")
            self._queue.append((sender, to, message))
        self._held.clear()
        self.settle()

    def cut(self, name: str) -> None:
        """Nothing gets from or to this node, until `heal`."""
        node = self[name].node
        for other in self.lives:
            if other != node:
                self._cut |= {(node, other), (other, node)}

    def heal(self) -> None:
        self._cut.clear()

    def pause(self, name: str) -> None:
        """The process stands still, and hears nothing."""
        self[name].is_running, self[name].is_paused = False, True
        self.tell(name, "stands still")

    def resume(self, name: str) -> None:
        self[name].is_running, self[name].is_paused = True, False
        self.tell(name, "runs again")
        self[name].take()
        self.settle()

    def crash(self, name: str) -> None:
        """Only what was synced is left."""
        life = self[name]
        lost = self.wording.records([append.record for append in life.disk.unsynced], SuperblockRecord(0, 0))
        life.disk.unsynced = []
        life.is_running = False
        self._queue = deque(one for one in self._queue if one[1] != life.node)
        self.tell(name, "crashes" + (f"; lost, for it was not synced: {lost}" if lost else ""))

    def restart(self, name: str) -> None:
        """A new life of the node, from what its disk holds."""
        former = self[name]
        self.tell(name, "starts again")
        life = self.lives[former.node] = Life(
            self, former.config, former.node, former.disk, former.disk_number, former.number + 1
        )
        life.take()
        self.settle()

    def join(self, name: str, config: GroupConfig) -> None:
        """A node that nobody knows yet starts, with an empty disk. What it is to be, it is told."""
        node = ord(name) - ord("A") + 1
        self.tell(name, "starts, with an empty disk")
        self.lives[node] = Life(self, replace(config, config_id=1), node, StageDisk())
        self.lives[node].take()

    def propose(self, name: str, config: GroupConfig) -> None:
        """An operator asks the sequencer for another configuration."""
        self.tell(name, f"is asked for configuration {config.config_id}")
        self[name].take(ConfigProposed(config))
        self.settle()

    def wipe(self, name: str) -> None:
        """The disk of a node that is down is replaced by an empty one."""
        self[name].disk = StageDisk()
        self[name].disk_number += 1
        self.tell(name, "has a new, empty disk")

    def damage(self, name: str) -> None:
        """The node finds that its log is not what was written."""
        self.tell(name, "finds its log damaged")
        self[name].take(LogDamaged())

    def stall(self, name: str) -> None:
        """The disk takes writes and does not sync them."""
        self[name].is_stalled = True

    def sync(self, name: str) -> None:
        self[name].is_stalled = False
        self.settle()

    def settle(self) -> None:
        """Deliver everything, sync everything, until all is quiet. No time passes."""
        idle = 0
        while idle < len(self.lives):
            while self._queue:
                self._arrive(*self._queue.popleft())
            # One disk after the other, and what it released is delivered before the next one is through.
            self._turn = self._turn % len(self.lives) + 1
            life = self.lives[self._turn]
            idle += 1
            if life.disk.unsynced and life.is_running and not life.is_stalled:
                life.sync()
                idle = 0
        self._turn = 0

    def wait(self, until: Callable[[], bool], ms_max: int = 10_000) -> None:
        """Let time pass until something is true."""
        end_ns = self.now_ns + ms_max * MS
        self.settle()
        while not until():
            running = [life for life in self.lives.values() if life.is_running]
            due = min(life.next_deadline_ns() for life in running)
            assert due <= end_ns, "what the story waits for does not happen:\n" + self.text()
            self.now_ns = max(self.now_ns + 1, due)
            for life in running:
                if life.next_deadline_ns() <= self.now_ns:
                    life.take()
            self.settle()

    def wait_ms(self, ms: int) -> None:
        """Let some time pass."""
        end_ns = self.now_ns + ms * MS
        self.wait(lambda: self.now_ns >= end_ns - self.config.heartbeat_ms * MS, ms)

    def wait_confirmed(self, *envelopes: str) -> None:
        self.wait(lambda: all(envelope in self.confirmed for envelope in envelopes))

    def wait_applied(self, name: str, number: int) -> None:
        self.wait(lambda: self[name].replica.applied >= number)

    def look(self) -> None:
        """What everybody holds, told in one line each."""
        self._leave_a_line()
        for node, life in self.lives.items():
            self.tell(letter(node), _state_of(life))

    def _leave_a_line(self) -> None:
        if self.lines[-1]:
            self.lines.append("")

    # -- links -------------------------------------------------------------------------------------

    def carry(self, sender: int, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        """A node sent a message to these nodes; its own copy it has had."""
        if isinstance(message, m.Data):
            self._name(message)
        fates = {node: "" if node == sender else self._send(sender, node, message) for node in nodes}
        if self._is_worth_telling(sender, message):
            is_for_nobody = all(fate == "down" for fate in fates.values())
            # What is repeated to somebody who is not there is told once.
            if not (is_for_nobody and (sender, message) in self._in_vain):
                self._tell_message(sender, message, fates)
            if is_for_nobody:
                self._in_vain.append((sender, message))

    def _send(self, sender: int, to: int, message: m.BusMessage) -> str:
        """Put a message on the link, and return its fate, which is empty if it will arrive."""
        if (sender, to) in self._cut:
            return "lost"
        for fate in self._fates:
            if fate.times and fate.concerns(sender, to, message):
                fate.times -= 1
                if fate.word == "held back":
                    self._held.append((sender, to, message))
                return fate.word
        if to not in self.lives or not self.lives[to].is_running:
            return "down"
        self._queue.append((sender, to, message))
        return ""

    def _arrive(self, sender: int, to: int, message: m.BusMessage) -> None:
        if self.lives[to].is_running:
            self.lives[to].take(Received(sender, message, self.lives[sender].disk_id))

    # -- telling -----------------------------------------------------------------------------------

    def tell(self, who: str, what: str) -> None:
        self._row = None
        if not self._is_quiet:
            self.lines.append(f"    {who:<12} {what}")

    def confirm(self, node: int, tag: int, first: int) -> None:
        """A producer has its answer."""
        self.confirmed.append(self._tags[node, tag])
        self.tell(letter(node), f'"{self._tags[node, tag]}" is confirmed, as number {first}')

    def _tell_message(self, sender: int, message: m.BusMessage, fates: dict[int, str]) -> None:
        if self._row is not None and self._row[:2] == (sender, message):
            # The same words to the next node: one line for all of them.
            fates = {**self._row[2], **fates}
            self.lines.pop()
        nodes = sorted(fates)
        notes = []
        for word in ("lost", "held back", "down"):
            unlucky = [node for node in nodes if fates[node] == word]
            notes += [f"{word}: {letters(unlucky)}"] if unlucky else []
        note = f"   [{'; '.join(notes)}]" if notes else ""
        who = f"{letter(sender)} -> {letters(nodes, self.lives[sender].members)}"
        self.tell(who, self.wording.message(message) + note)
        self._row = None if self._is_quiet else (sender, message, fates)

    def _is_worth_telling(self, sender: int, message: m.BusMessage) -> bool:
        if isinstance(message, NEVER_SHOWN):
            return False
        if isinstance(message, m.Heartbeat | m.Applied):
            upto = message.committed_upto if isinstance(message, m.Heartbeat) else message.upto
            news = (message.epoch, upto)
            kind = (sender, kind_name(message))
            is_new = self._news.get(kind) != news
            self._news[kind] = news
            return is_new
        return True

    def _name(self, data: m.Data) -> None:
        for (node, _), envelope in self._tags.items():
            if node == data.mid.pid and command(envelope) == data.payload:
                self.wording.names[data.mid] = envelope
