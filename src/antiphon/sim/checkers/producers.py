"""Producers are told the truth, and it stays true (I4, I5, I16).

    I4   a confirmed envelope is in the order, at the place that was told, with the submitted payload
    I5   the envelopes of a node are in the order in which they were submitted, each at most once, in however
         many runs they were sent, unless the producer called one uncertain
    I16  an envelope that failed for good never enters the order

A failure is final for one of two reasons, both facts of the committed order. The run of the envelope is over:
another was opened, or it was fenced, behind it. Or the order has passed ts + L: rule X says that an envelope
is numbered n only if n <= ts + L. A sequencer's statement alone is not final, because its log may be given
up; so a refusal counts only when a data server makes it by itself.
"""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import Entry, EntryKind, NackReason
from antiphon.ids import Mid, epoch_node
from antiphon.sim.checkers.committed import Committed
from antiphon.sim.checkers.reigns import words
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World

_REFUSALS = (NackReason.EXPIRED, NackReason.FENCED)


class Failures(Checker):
    """Folds the runs of producers, and remembers the statements about their envelopes."""

    promise = "I16 definite failure"
    hears = (m.Data, m.ReportNack, m.Published, m.ProducerOpened)

    def __init__(self, world: World, committed: Committed) -> None:
        super().__init__(world)
        self._committed = committed
        committed.followers.append(self._on_committed)
        self._ts: dict[Mid, int] = {}
        self._told: dict[Mid, str] = {}
        self._refused: set[tuple[int, Mid, int]] = set()
        # The open run of each producer and the one before it; the term in which a fence counts.
        self._runs: dict[int, tuple[int, int]] = {}
        self._term = 0

    def is_hopeless(self, mid: Mid) -> bool:
        """Can this envelope, which is not in the order, never get there?"""
        return self._is_over(mid) or self._has_expired(mid)

    def _is_over(self, mid: Mid) -> bool:
        return mid.pe < self._runs.get(mid.pid, (0, 0))[0]

    def _has_expired(self, mid: Mid) -> bool:
        committed = self._committed
        lifetime = committed.memberships.newest.lifetime
        return self._ts.get(mid, committed.upto) + lifetime < committed.upto

    def _on_committed(self, entry: Entry) -> None:
        if entry.kind is EntryKind.DATA:
            self._on_data(entry)
        elif entry.kind is EntryKind.PRODUCER_OPEN:
            self._begin(OpenDetail.decode(entry.detail).pid, entry.first)
        elif entry.kind is EntryKind.PRODUCER_FENCE:
            pid, pe, term = FenceDetail.decode(entry.detail)
            if term == self._term and self._runs.get(pid, (0, 0))[0] == pe:
                self._begin(pid, entry.first)
        elif entry.kind is EntryKind.PRIMARY_CLAIM:
            self._term = entry.mid.pe

    def _begin(self, pid: int, pe: int) -> None:
        self._runs[pid] = (pe, self._runs.get(pid, (0, 0))[0])

    def _on_data(self, entry: Entry) -> None:
        mid = entry.mid
        if mid in self._told:
            self.fail(f"{words(entry)} enters the order after its producer was told {self._told[mid]}")
        if self._runs.get(mid.pid, (0, 0))[0] != mid.pe:
            self.fail(f"{words(entry)} enters the order, and its run is not the open one")
        if entry.first > entry.ts + self._committed.memberships.newest.lifetime:
            self.fail(f"{words(entry)} enters the order after its lifetime, its ts is {entry.ts}")

    def on_sent(self, node: int, message: m.BusMessage) -> None:
        if isinstance(message, m.Data):
            self._ts.setdefault(message.mid, message.ts)
        elif isinstance(message, m.ReportNack):
            if message.reason in _REFUSALS:
                self._on_refusal(node, message)
        elif isinstance(message, m.Published):
            if message.mid not in self._committed.place_of:
                self.fail(f"node {node} calls {tuple(message.mid)} published, and it is not in the order")
        elif isinstance(message, m.ProducerOpened):
            entry = self._committed.log.get(message.pe)
            detail = OpenDetail(message.pid, message.run_id).encode()
            if entry is None or entry.kind is not EntryKind.PRODUCER_OPEN or entry.detail != detail:
                self.fail(f"node {node} says that producer {message.pid} is open as {message.pe}")

    def _on_refusal(self, node: int, nack: m.ReportNack) -> None:
        mid, key = nack.mid, (nack.epoch, nack.mid, int(nack.reason))
        if node == epoch_node(nack.epoch):
            # From the sequencer, or from its own data server: the two cannot be told apart.
            self._refused.add(key)
            return
        if key in self._refused:
            return
        is_ancient = mid.pe < self._runs.get(mid.pid, (0, 0))[1]
        if is_ancient:
            # Of runs before the last two only their end is known.
            return
        if mid in self._committed.place_of:
            self.fail(f"node {node} calls {tuple(mid)} {nack.reason.name}, and it is in the order")
        is_true = self._is_over(mid) if nack.reason is NackReason.FENCED else self._has_expired(mid)
        if not is_true:
            self.fail(f"node {node} calls {tuple(mid)} {nack.reason.name}, and the order does not say so")
        self._told.setdefault(mid, nack.reason.name)


class SubmittedEnvelopes(Checker):
    """Follows envelopes from their submission to their confirmation, by their payloads."""

    promise = "I4, I5 envelopes"
    hears = (m.Data,)

    def __init__(self, world: World, committed: Committed) -> None:
        super().__init__(world)
        self._committed = committed
        committed.followers.append(self._on_committed)
        # Node and its count of submissions, by payload; and the payload by node and tag.
        self._submitted: dict[bytes, tuple[int, int]] = {}
        self._payload_of: dict[tuple[int, int], bytes] = {}
        self._counts: dict[int, int] = {}
        # The payloads of sent envelopes; their places; each node's progress in its submissions.
        self._sent: dict[Mid, bytes] = {}
        self._placed: dict[bytes, int] = {}
        self._reached: dict[int, int] = {}
        self._uncertain: set[bytes] = set()
        self._applied = 0

    @property
    def figures(self) -> dict[str, int]:
        return {"submitted": len(self._submitted), "ordered": len(self._placed)}

    def on_submitted(self, node: int, tag: int, payload: bytes) -> None:
        assert payload not in self._submitted, "the workload used a payload twice"
        assert (node, tag) not in self._payload_of, "the workload used a tag twice"
        count = self._counts[node] = self._counts.get(node, 0) + 1
        self._submitted[payload] = (node, count)
        self._payload_of[node, tag] = payload

    def on_sent(self, node: int, message: m.BusMessage) -> None:
        assert isinstance(message, m.Data), "nothing else is heard"
        if message.mid not in self._sent:
            self._sent[message.mid] = bytes(message.payload)

    def _on_committed(self, entry: Entry) -> None:
        if entry.kind is not EntryKind.DATA:
            return
        payload = self._sent.get(entry.mid, b"")
        submitted = self._submitted.get(payload)
        if submitted is None:
            # Messages among the machines of a node are not followed here.
            return
        node, count = submitted
        is_repeated = payload in self._uncertain
        if payload in self._placed and not is_repeated:
            self.fail(
                f"{words(entry)} was submitted once and is in the order at {self._placed[payload]}, too"
            )
        if entry.mid.pid != node:
            self.fail(f"{words(entry)} was submitted at node {node}")
        reached = self._reached.get(node, 0)
        if count <= reached and not is_repeated:
            self.fail(f"{words(entry)} was submitted before one of node {node} that stands before it")
        self._reached[node] = max(reached, count)
        self._placed[payload] = entry.first

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last > self._applied:
            self._applied = entry.last

    def on_envelope_uncertain(self, node: int, tag: int) -> None:
        self._uncertain.add(self._payload_of[node, tag])

    def on_envelope_confirmed(self, node: int, tag: int, first: int, count: int) -> None:
        payload = self._payload_of.pop((node, tag), None)
        if payload is None:
            self.fail(f"node {node} is told twice of envelope {tag}, or of one that it never submitted")
        if (place := self._placed.get(payload)) != first:
            self.fail(
                f"envelope {tag} of node {node} was confirmed at {first}, and the order has it at {place}"
            )
        if self._committed.log[first].count != count:
            self.fail(f"envelope {tag} of node {node} was confirmed with {count} numbers")
        if first + count - 1 > self._applied:
            self.fail(f"envelope {tag} of node {node} was confirmed at {first}, and nobody has applied it")
