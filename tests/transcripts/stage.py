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
from antiphon.bus.codec import decode, encode
from antiphon.bus.effects import (
    Alarm,
    ConfigProposed,
    Effect,
    EnvelopeConfirmed,
    InstallState,
    LogDamaged,
    Received,
    Reconfigured,
    Submitted,
    SuperblockRecord,
    WriteCheckpoint,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry
from antiphon.bus.schema import Machine, heard_by
from antiphon.bus.sequencer import State
from tests.stage import Life, MemoryPayloads, StageDisk, command
from tests.transcripts.wording import Wording, epoch_name, kind_name, letter, letters

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


def disk_id(node: int, number: int = 1) -> bytes:
    return b"%s's disk no. %03d" % (letter(node).encode(), number)


class ToldLife(Life):
    """A life on the stage, which tells what happens in it."""

    def __init__(
        self,
        stage: Stage,
        config: GroupConfig,
        node: int,
        disk: StageDisk,
        disk_number: int = 1,
        number: int = 1,
    ) -> None:
        self.stage, self.disk_number, self.number = stage, disk_number, number
        self.is_running = True
        self.is_paused = False
        self.is_stalled = False
        run_id = b"node %s, life %03d" % (letter(node).encode(), number)
        super().__init__(config, node, disk, run_id, disk_id(node, disk_number))

    @property
    def now_ns(self) -> int:  # type: ignore[override]
        return self.stage.now_ns

    def sync(self) -> None:
        # That an epoch began here is a promise, too.
        found = self.disk.recovered(MemoryPayloads())
        before = SuperblockRecord(found.promised, found.epoch_claimed)
        words = self.stage.wording.records([append.record for append in self.disk.unsynced], before)
        self._tell_of_disk(f"durable: {words}")
        super().sync()

    def on_effect(self, effect: Effect) -> None:
        match effect:
            case EnvelopeConfirmed(tag, first):
                self.stage.confirm(self.node, tag, first)
            case Reconfigured(config):
                self._tell(f"goes over to configuration {config.config_id}")
            case Alarm(event):
                self._tell(f"ALARM {event.text}")
            case WriteCheckpoint(n):
                self._tell_of_disk(f"durable: checkpoint {n}")
            case InstallState(n):
                self._tell(f"stands behind {n} from now on")

    def on_said_here(self, message: m.BusMessage) -> None:
        self.stage.carry(self.node, (self.node,), message)

    def on_sent(self, nodes: tuple[int, ...], message: m.BusMessage) -> None:
        self.stage.carry(self.node, nodes, message)

    def on_applied(self, entries: list[Entry]) -> None:
        self._tell(f"applies {self.stage.wording.entries(entries)}")

    def _tell(self, what: str) -> None:
        self.stage.tell(letter(self.node), what)

    def _tell_of_disk(self, what: str) -> None:
        self.stage.tell(f"{letter(self.node)} disk", what)


def _state_of(life: ToldLife) -> str:
    if life.is_running:
        replica = life.replica
        does = "leads" if replica.state is State.LEADING else "follows"
        log = f"log of {epoch_name(replica.log_epoch)} through {replica.last}"
        promised = epoch_name(replica.promised)
        return f"{does} {epoch_name(replica.epoch)}; promised {promised}; {log}; applied {replica.applied}"
    found = life.disk.recovered(MemoryPayloads())
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
        # Long after every pause: machines write 0 where something is due at once.
        self.now_ns = 1_000_000 * MS
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
        self.lives = {node: ToldLife(self, self.config, node, StageDisk()) for node in nodes}

    def __getitem__(self, name: str) -> ToldLife:
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
        life = self.lives[former.node] = ToldLife(
            self, former.config, former.node, former.disk, former.disk_number, former.number + 1
        )
        life.take()
        self.settle()

    def join(self, name: str, config: GroupConfig) -> None:
        """A node that nobody knows yet starts, with an empty disk. What it is to be, it is told."""
        node = ord(name) - ord("A") + 1
        self.tell(name, "starts, with an empty disk")
        self.lives[node] = ToldLife(self, replace(config, config_id=1), node, StageDisk())
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
            _, heard = decode(encode(message, "main", 1, sender, bytes(16)))
            self.lives[to].take(Received(sender, heard, self.lives[sender].disk_id))

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
