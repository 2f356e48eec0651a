"""Link: frames of this node into sealed datagrams, datagrams of the others into frames.

Where it sits
    node  ->  LINK( packing, sealing, members, replay, repair )  ->  sockets

What it promises
    LNK1  A frame comes out at most once for each time it was sent, whole, and only of a run that has proved
          to be alive.
    LNK2  Where `is_repairing`, a lost datagram is asked for until it comes or `give_up_ms` are over. Senders
          announce the heads of their streams, soon after the last datagram and then less and less often, so
          that the loss of the last one is noticed too; but not for datagrams with periodic frames alone, for
          which the next one makes up.
    LNK3  A datagram that is not genuine, not fresh, or not for this member changes a counter and nothing
          else.

What it leaves to others
    Sockets, the clock, random numbers. `outgoing` holds the datagrams to be sent, each with its destination:
    a lane, or `UNICAST` + a member. `deadline_ns` says when to call `on_timer`.

A stream that is met in its middle is taken up a little before: a node that restarts asks for the last few
datagrams, and a node that was there all the time loses none of a new run's first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from antiphon.bus.chance import Chance
from antiphon.errors import ProtocolError
from antiphon.transport import packing as p
from antiphon.transport.interface import NOBODY, ArrivedFrame, Counters, TransportSettings
from antiphon.transport.keys import GroupKeys
from antiphon.transport.members import Incoming, PeerMember, PeerRun, challenge_for
from antiphon.transport.packing import Assembler
from antiphon.transport.repair import MS, Gaps, Sealed, Span, Store
from antiphon.transport.replay import ReplayWindow
from antiphon.transport.sealing import (
    HEAD,
    LANE,
    LANE_TALK,
    MAGIC,
    OVERHEAD_BYTES,
    UNICAST,
    UNICAST_TALK,
    VERSION,
    Opener,
    SealedStream,
    Sealer,
    talk_of,
)
from antiphon.wire.lanes import ALL_LANES, Lane
from antiphon.wire.primitives import Buffer

HEADS_NS: Final = 20 * MS
HEADS_NS_MAX: Final = 1_000 * MS
# For a stream of which nothing is left that could be asked for again.
IDLE_HEADS_NS_MAX: Final = 4_000 * MS
REACH_BACK: Final = 64
SPANS_PER_ASK: Final = 80
ASKS_AT_ONCE: Final = 8

# Past the constructor of a tuple with names: there are some for every datagram.
_new: Final = tuple.__new__

Out = tuple[int, Sealed]
"""Destination and datagram."""


WRONG_KEY: Final = "wrong_key"
OTHER_CLUSTER: Final = "other_cluster"
GARBAGE: Final = "garbage"
REPLAYS: Final = "replays"
UNPROVEN: Final = "unproven"

_WORDS: Final = {
    WRONG_KEY: "a datagram was not sealed with a key of this group",
    OTHER_CLUSTER: "a datagram of another cluster arrived; do the two share a multicast group?",
    GARBAGE: "something arrived that is no datagram of ours",
    REPLAYS: "a datagram came again, or of a run that is over: perhaps somebody plays back a recording",
    UNPROVEN: "a second run beside one that is alive proved nothing: perhaps somebody plays back a recording",
}

_logger = logging.getLogger("antiphon.transport")


class Oddities:
    """Counts unexpected arrivals, and logs those an operator can act upon, once for each kind and member."""

    def __init__(
        self,
        counters: Mapping[int | None, Counters],
        names: Mapping[int, str],
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._counters = counters
        self._names = names
        self._log = log or _logger.warning
        self._logged: dict[tuple[str, int | None], None] = {}

    def note(self, kind: str, claimed: int | None, words: str = "", *, is_usual: bool = False) -> None:
        """Count an arrival of this kind that claims to be from this member.

        Arrivals that are usual, as when datagrams are repaired for others, are not logged.
        """
        counters = self._counters.get(claimed) or self._counters[NOBODY]
        setattr(counters, kind, getattr(counters, kind) + 1)
        words = "" if is_usual else words or _WORDS.get(kind, "")
        who = claimed if claimed in self._counters else NOBODY
        if words and (words, who) not in self._logged:
            self._logged[words, who] = None
            source = "from nobody we know" if who is NOBODY else f"in the name of {self._names[who]}"
            self._log(f"{words} ({source}; said once, counted from now on)")


class _OutgoingStream:
    """A stream of ours: what waits to be sealed, what was sent, and when to announce its head."""

    __slots__ = (
        "counters",
        "destination",
        "heads_at_ns",
        "heads_interval_ns",
        "is_dirty",
        "is_lasting",
        "is_unicast",
        "lasting_end",
        "packer",
        "quiet_ns",
        "sealed",
        "store",
        "talk",
    )

    def __init__(
        self,
        sealed: SealedStream,
        talk: SealedStream,
        packer: p.Packer,
        store: Store | None,
        counters: Counters,
    ) -> None:
        self.sealed = sealed
        self.destination = sealed.stream
        self.is_unicast = sealed.stream >= UNICAST
        self.talk = talk
        self.packer = packer
        self.store = store
        self.counters = counters
        self.is_dirty = False
        # Whether a frame that is not periodic waits to be sealed, and the number behind the last datagram
        # with such a frame.
        self.is_lasting = False
        self.lasting_end = 0
        self.heads_at_ns: int | None = None
        self.heads_interval_ns = HEADS_NS
        # From when on the stream was quiet for so long that its last datagram needs an announcement.
        self.quiet_ns = 0

    @property
    def can_be_missed(self) -> bool:
        """Is a datagram kept whose loss the next one would not make up for?"""
        return self.store is not None and self.store.oldest < self.lasting_end


class NodeLink:
    """The transport of one node without its sockets."""

    def __init__(
        self,
        settings: TransportSettings,
        *,
        secret: bytes,
        is_repairing: bool,
        datagram_bytes: int,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """`secret` is random and known to nobody else; it need not outlive the process."""
        self.settings = settings
        self.node = settings.node
        self.counters: dict[int | None, Counters] = {node: Counters() for node in settings.peers}
        self.counters[NOBODY] = Counters()
        self.arrived: list[ArrivedFrame] = []
        self.outgoing: list[Out] = []
        self.deadline_ns: int | None = None
        self._keys = settings.keys
        self._secret = secret
        self._is_repairing = is_repairing
        self._give_up_ns = settings.give_up_ms * MS
        self._odd = Oddities(self.counters, settings.names, log)
        self._chance = Chance.of(b"link", settings.run_id)
        self._members = {node: PeerMember(node) for node in settings.others}
        self._sealer = Sealer(settings.keys, settings.cluster_id, settings.node, settings.run_id)
        room = datagram_bytes - OVERHEAD_BYTES
        self._streams: dict[int, _OutgoingStream] = {}
        for stream in [*(LANE + lane for lane in Lane), *(UNICAST + node for node in settings.others)]:
            self._begin(stream, room)
        self.dirty: list[_OutgoingStream] = []
        # This member listens to frames and talk for itself, and to those of its lanes.
        lanes = settings.peers[settings.node].lanes & ALL_LANES
        self._frame_streams = {UNICAST + self.node, *(LANE + lane for lane in lanes)}
        self._talk_streams = {UNICAST_TALK + self.node, *(LANE_TALK + lane for lane in lanes)}

    def _begin(self, stream: int, room: int) -> None:
        store = None
        if self._is_repairing:
            store = Store(bytes_max=self.settings.repair_bytes_max, keep_ns=self._give_up_ns)
        self._streams[stream] = _OutgoingStream(
            self._sealer.stream(stream),
            self._sealer.stream(talk_of(stream)),
            p.Packer(room, self.settings.frame_bytes_max),
            store,
            self.counters[stream - UNICAST if stream >= UNICAST else self.node],
        )

    # -- sending ---------------------------------------------------------------

    @property
    def whole_bytes(self) -> int:
        """The largest frame that goes into one datagram."""
        return self._streams[LANE].packer.whole_bytes

    def start(self, now_ns: int) -> None:
        """Greet all members."""
        for node in self._members:
            self.greet(now_ns, node)

    def greet(self, now_ns: int, node: int) -> None:
        """A connection to this member has begun: introduce ourselves."""
        out = self._streams[UNICAST + node]
        out.heads_interval_ns = HEADS_NS
        self._say_heads(now_ns, out)

    def send(self, stream: int, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        """A frame for one stream: a lane, or `UNICAST` + a member."""
        out = self._streams[stream]
        out.packer.add(buffers)
        out.counters.frames_sent += 1
        if not is_periodic:
            out.is_lasting = True
        if not out.is_dirty:
            out.is_dirty = True
            self.dirty.append(out)

    def flush(self, now_ns: int) -> list[Out]:
        """Seal what waits, and return everything that is to be sent."""
        if self.dirty:
            for out in self.dirty:
                self._seal(now_ns, out)
            self.dirty = []
        outgoing, self.outgoing = self.outgoing, []
        return outgoing

    def _seal(self, now_ns: int, out: _OutgoingStream) -> None:
        out.is_dirty = False
        sealed, store, counters = out.sealed, out.store, out.counters
        destination = sealed.stream
        for body in out.packer.take():
            number = sealed.next
            datagram = _new(Sealed, sealed.seal(body))
            if store is not None:
                store.keep(now_ns, number, datagram)
            counters.datagrams_sent += 1
            counters.bytes_sent += len(body) + OVERHEAD_BYTES
            self.outgoing.append((destination, datagram))
        if store is None:
            return
        if out.is_lasting:
            out.is_lasting = False
            out.lasting_end = sealed.next
            out.heads_interval_ns = HEADS_NS
            out.quiet_ns = now_ns + HEADS_NS
            if out.heads_at_ns is None or out.heads_at_ns > out.quiet_ns:
                out.heads_at_ns = out.quiet_ns
                self._wake(out.heads_at_ns)
        else:
            # Perhaps no head is announced for long.
            store.expire(now_ns)

    def _talk(self, out: _OutgoingStream, body: bytes) -> None:
        out.counters.datagrams_sent += 1
        out.counters.bytes_sent += len(body) + OVERHEAD_BYTES
        self.outgoing.append((out.destination, _new(Sealed, out.talk.seal(body))))

    def use_keys(self, keys: GroupKeys) -> None:
        self._keys = keys
        self._sealer.use(keys)
        for member in self._members.values():
            for run in member.runs():
                run.opener.forget()

    # -- receiving -------------------------------------------------------------

    def receive(self, now_ns: int, datagram: Buffer) -> PeerRun | None:
        """Receive a datagram. Returns its sender, if it was genuine and new."""
        if len(datagram) <= OVERHEAD_BYTES:
            self.note_garbage()
            return None
        magic, version, key_id, sender, cluster_id, run_id, stream, counter = HEAD.unpack_from(datagram)
        if magic != MAGIC or version != VERSION:
            self.note_garbage()
            return None
        member = self._members.get(sender)
        if cluster_id != self.settings.cluster_id or member is None:
            self._note_stranger(sender, cluster_id, run_id)
            return None
        run = member.current
        if run is None or run.run_id != run_id:
            run = self._other_run(now_ns, member, run_id)
            if run is None:
                return None
        incoming = run.streams.get(stream)
        # As a rule the number is the next one, and needs no look at the window.
        if incoming is not None and counter != incoming.window.next and not incoming.window.is_fresh(counter):
            # A repair for one member also reaches members that have the datagram already.
            self._odd.note(REPLAYS, sender, is_usual=self._is_repairing)
            return None
        if not run.is_proven and run.is_full and stream in self._frame_streams:
            # Treated as lost: the datagram is asked for when the run has proved itself.
            return None
        body = run.opener.open(self._keys, key_id, datagram)
        if body is None:
            self._odd.note(WRONG_KEY, sender)
            return None
        if incoming is None:
            incoming = self._meet(now_ns, member, run, stream, counter)
            if incoming is None:
                return None
        window = incoming.window
        if counter == window.next and not window.missing:
            window.next = counter + 1
        else:
            if incoming.gaps is not None and counter > window.next:
                self._expect(now_ns, incoming.gaps, counter)
            window.take(counter)
        run.heard_ns = now_ns
        counters = self.counters[sender]
        counters.datagrams += 1
        counters.bytes += len(datagram)
        try:
            if body[0] == p.FRAMES:
                self._arrive(run, p.unpack_frames(body))
            else:
                self._on_body(now_ns, run, stream, counter, body)
        except ProtocolError:
            self._odd.note(GARBAGE, sender, "a datagram of a member makes no sense; another version?")
            return None
        return run

    def note_garbage(self) -> None:
        """Count bytes that cannot even be a datagram."""
        self._odd.note(GARBAGE, NOBODY)

    def _note_stranger(self, sender: int, cluster_id: bytes, run_id: bytes) -> None:
        if cluster_id != self.settings.cluster_id:
            self._odd.note(OTHER_CLUSTER, NOBODY)
        elif sender != self.node:
            self._odd.note(GARBAGE, NOBODY, "a datagram names a sender that is no member")
        elif run_id != self.settings.run_id:
            self._odd.note(GARBAGE, NOBODY, "somebody else speaks as this member; are there two of us?")
        # Else the datagram is the echo of our own multicast.

    def _other_run(self, now_ns: int, member: PeerMember, run_id: bytes) -> PeerRun | None:
        """A run that is not the member's current one; None if it is over."""
        run = member.unproven.get(run_id)
        if run is None and member.is_retired(run_id):
            is_usual = self._is_repairing and member.may_be_late(now_ns, run_id)
            self._odd.note(REPLAYS, member.node, is_usual=is_usual)
            return None
        return run or PeerRun(
            member.node,
            run_id,
            Opener(self.settings.cluster_id, member.node, run_id),
            Assembler(
                bytes_max=self.settings.partial_bytes_max,
                frame_bytes_max=self.settings.frame_bytes_max,
                keep_ns=self._give_up_ns,
            ),
        )

    def _meet(
        self, now_ns: int, member: PeerMember, run: PeerRun, stream: int, counter: int
    ) -> Incoming | None:
        """The first datagram of a stream, perhaps of a run; None if it is not for us."""
        if stream not in self._frame_streams and stream not in self._talk_streams:
            return None
        if not run.is_proven and run.run_id not in member.unproven:
            gone = member.met(run)
            if gone is not None:
                self._odd.note(UNPROVEN, member.node, is_usual=member.was_life(gone))
            self._challenge(now_ns, run)
        if stream in self._talk_streams:
            incoming = run.streams[stream] = Incoming(ReplayWindow(counter), None)
            return incoming
        return self._begin_incoming(run, stream, counter, 0)

    def _begin_incoming(self, run: PeerRun, stream: int, head: int, oldest: int) -> Incoming:
        if self._is_repairing:
            gaps = Gaps(
                max(oldest, head - REACH_BACK, 0),
                give_up_ns=self._give_up_ns,
                is_shared=stream < UNICAST,
                chance=self._chance,
            )
            incoming = Incoming(gaps.window, gaps)
        else:
            incoming = Incoming(ReplayWindow(head), None)
        run.streams[stream] = incoming
        return incoming

    def _expect(self, now_ns: int, gaps: Gaps, head: int) -> None:
        gaps.expect(now_ns, head)
        if gaps.next_ns is not None:
            self._wake(gaps.next_ns)

    def _on_body(self, now_ns: int, run: PeerRun, stream: int, counter: int, body: bytes) -> None:
        kind = body[0]
        if kind == p.PART:
            index, count, piece = p.unpack_part(body)
            self.counters[run.sender].fragments += 1
            whole = run.assembler.add(now_ns, (stream, counter - index), index, count, piece)
            if whole is not None:
                self._arrive(run, [whole])
        elif kind == p.HEADS:
            self._on_heads(now_ns, run, p.unpack_heads(body))
        elif kind == p.ASK:
            self._on_ask(now_ns, run, *p.unpack_ask(body))
        elif kind == p.CHALLENGE:
            self._on_challenge(now_ns, run, p.unpack_nonce(body))
        elif kind == p.ECHO:
            self._on_echo(now_ns, run, p.unpack_nonce(body))
        else:
            raise ProtocolError(f"a body of kind {kind}")

    def _arrive(self, run: PeerRun, frames: Sequence[bytes | memoryview]) -> None:
        sender, run_id = run.sender, run.run_id
        arrived = [_new(ArrivedFrame, (sender, run_id, frame)) for frame in frames]
        if run.is_proven:
            self.counters[sender].frames += len(arrived)
            self.arrived += arrived
        else:
            run.held += arrived
            run.held_bytes += sum(map(len, frames))

    # -- proving that one is alive ---------------------------------------------

    def _challenge(self, now_ns: int, run: PeerRun) -> None:
        run.challenged(now_ns)
        self._wake(run.challenge_at_ns)
        nonce = challenge_for(self._secret, run.sender, run.run_id)
        self._talk(self._streams[UNICAST + run.sender], p.pack_nonce(p.CHALLENGE, nonce))

    def _on_challenge(self, now_ns: int, run: PeerRun, nonce: bytes) -> None:
        out = self._streams[UNICAST + run.sender]
        self._talk(out, p.pack_nonce(p.ECHO, nonce))
        # The member begins to listen now: with our heads it notices from here on what it misses.
        self._say_heads(now_ns, out)

    def _on_echo(self, now_ns: int, run: PeerRun, nonce: bytes) -> None:
        if run.is_proven or nonce != challenge_for(self._secret, run.sender, run.run_id):
            return
        self._members[run.sender].proved(now_ns, run)
        self.counters[run.sender].frames += len(run.held)
        self.arrived += run.held
        run.held, run.held_bytes = [], 0
        for incoming in run.streams.values():
            if incoming.gaps is not None and incoming.gaps.next_ns is not None:
                self._wake(incoming.gaps.next_ns)

    # -- repairing -------------------------------------------------------------

    def _on_heads(self, now_ns: int, run: PeerRun, heads: list[tuple[int, int, int]]) -> None:
        """Receive the heads of the sender's streams, and the oldest numbers that can still be had."""
        if not self._is_repairing:
            return
        for stream, oldest, head in heads:
            if stream not in self._frame_streams:
                continue
            incoming = run.streams.get(stream)
            if incoming is None:
                incoming = self._begin_incoming(run, stream, head, oldest)
            assert incoming.gaps is not None, "a stream of frames is not repaired"
            if head > incoming.window.next:
                self._expect(now_ns, incoming.gaps, head)
            if incoming.window.missing:
                incoming.window.give_up_below(oldest)

    def _on_ask(self, now_ns: int, run: PeerRun, whom: int, stream: int, spans: list[Span]) -> None:
        if not run.is_proven or not self._is_repairing:
            return
        if whom == self.node:
            self._repair(now_ns, run, stream, spans)
        elif whom in self._members:
            asked = self._members[whom].current
            incoming = asked.streams.get(stream) if asked is not None else None
            if incoming is not None and incoming.gaps is not None:
                incoming.gaps.overheard(now_ns, spans)

    def _repair(self, now_ns: int, run: PeerRun, stream: int, spans: list[Span]) -> None:
        if stream >= UNICAST and stream != UNICAST + run.sender:
            return
        out = self._streams.get(stream)
        if out is None or out.store is None:
            return
        given = out.store.give(now_ns, spans)
        self.counters[run.sender].repairs_given += len(given)
        self.outgoing += [(stream, datagram) for datagram in given]
        if spans and spans[0][0] < out.store.oldest:
            # The member waits for a datagram that is gone: tell it so.
            self._say_heads(now_ns, out)

    def _say_heads(self, now_ns: int, out: _OutgoingStream) -> None:
        """Announce the head of a stream, and when to do so again."""
        heads = []
        if out.store is not None:
            heads.append((out.destination, out.store.oldest, out.sealed.next))
            if out.is_unicast:
                heads += self._quiet_heads(out.destination - UNICAST)
        self._talk(out, p.pack_heads(heads))
        out.heads_at_ns = now_ns + out.heads_interval_ns
        is_idle = out.store is not None and not out.can_be_missed
        most_ns = IDLE_HEADS_NS_MAX if is_idle else HEADS_NS_MAX
        out.heads_interval_ns = min(2 * out.heads_interval_ns, most_ns)
        self._wake(out.heads_at_ns)

    def _quiet_heads(self, node: int) -> list[tuple[int, int, int]]:
        """The heads of the quiet lanes that this member listens to.

        So the member knows where a lane begins before the first frame in it, and learns what it has missed
        for good. A lane in use is left out: its head could arrive before the datagrams that wait in the
        member's socket.
        """
        lanes = [self._streams[LANE + lane] for lane in sorted(self.settings.peers[node].lanes)]
        return [(lane.destination, lane.sealed.next, lane.sealed.next) for lane in lanes if not lane.store]

    # -- time ------------------------------------------------------------------

    def _wake(self, at_ns: int) -> None:
        if self.deadline_ns is None or at_ns < self.deadline_ns:
            self.deadline_ns = at_ns

    def on_timer(self, now_ns: int) -> None:
        """Do what is due, and find the next deadline."""
        self.deadline_ns = None
        earliest: int | None = None
        for out in self._streams.values():
            at_ns = out.heads_at_ns
            if at_ns is None:
                continue
            if at_ns <= now_ns:
                self._look_at_stream(now_ns, out)
            elif earliest is None or at_ns < earliest:
                earliest = at_ns
        if earliest is not None:
            self._wake(earliest)
        for member in self._members.values():
            self._look_at_member(now_ns, member)

    def _look_at_stream(self, now_ns: int, out: _OutgoingStream) -> None:
        if out.store is not None:
            out.store.expire(now_ns)
        if out.quiet_ns > now_ns:
            # Later datagrams of the stream show a loss before it.
            out.heads_at_ns = out.quiet_ns
            self._wake(out.heads_at_ns)
        elif out.is_unicast or out.can_be_missed:
            self._say_heads(now_ns, out)
        else:
            # The multicasts of this stream are too old to be asked for, or need not be.
            out.heads_at_ns = None

    def _look_at_member(self, now_ns: int, member: PeerMember) -> None:
        if member.unproven:
            for run in member.forget_silent(now_ns):
                self._odd.note(UNPROVEN, member.node, is_usual=member.was_life(run))
            for run in member.unproven.values():
                if run.challenge_at_ns <= now_ns:
                    self._challenge(now_ns, run)
                else:
                    self._wake(run.challenge_at_ns)
        current = member.current
        if current is None:
            return
        if current.assembler.bytes:
            current.assembler.expire(now_ns)
            self._wake(now_ns + self._give_up_ns)
        for stream, incoming in current.streams.items():
            gaps = incoming.gaps
            if gaps is None or gaps.next_ns is None:
                continue
            if gaps.next_ns <= now_ns:
                self._ask(current.sender, stream, gaps.due(now_ns))
            if gaps.next_ns is not None:
                self._wake(gaps.next_ns)

    def _ask(self, whom: int, stream: int, spans: list[Span]) -> None:
        # A missing multicast is asked for by multicast, so that other members need not ask; unless its sender
        # does not listen to that lane.
        is_shared = stream < UNICAST and stream - LANE in self.settings.peers[whom].lanes
        out = self._streams[stream if is_shared else UNICAST + whom]
        for at in range(0, min(len(spans), SPANS_PER_ASK * ASKS_AT_ONCE), SPANS_PER_ASK):
            asked = spans[at : at + SPANS_PER_ASK]
            self.counters[whom].repairs_asked += sum(count for _, count in asked)
            self._talk(out, p.pack_ask(whom, stream, asked))

    def read_counters(self) -> dict[int | None, Counters]:
        """The counters, with the sums that are only made on demand."""
        for node, member in self._members.items():
            lost = sum(run.given_up for run in member.runs() if run.is_proven)
            self.counters[node].gave_up = member.gave_up_before + lost
        return self.counters
