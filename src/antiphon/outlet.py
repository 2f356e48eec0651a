"""Outlet: when, and on which lane, a node's messages to the other members of a channel leave.

Where it sits
    node  ->  Send, Multicast  ->  OUTLET  ->  frames  ->  transport or simulated links

What it promises
    OTL1  The envelopes that a step sends to all leave in as few frames as hold them: half the cost of a small
          envelope is its own frame. A `CommitSubmit` for every replica is sent once to all of them.
    OTL2  Client managers hear a late message (`is_late`) at once. All other members hear it once and in
          order, before any later message to them, and no later than `LATE_NS`.
    OTL3  Where only replicas listen to the envelopes' lane (there is no witness) late messages take that
          lane, together with `CommitSubmit`s for all replicas: no client manager is woken for them.
    OTL4  A replica for which no other node waits leaves arrived frames for `SPARE_NS`, and takes them
          together, with one sync for all.

What it leaves to others
    A function that is handed in encodes every message once. A late message must be one that the network might
    as well have delayed, such as `Commit` and `Applied`: nobody waits for a replica to apply, but every
    datagram by itself is a step of each replica, just when the client's confirmation is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from antiphon.bus import messages as said
from antiphon.bus.schema import KINDS
from antiphon.transport.interface import Peer
from antiphon.wire.lanes import Lane

Parcel = TypeVar("Parcel")

_LANES: Final = {message: kind.lane for message, kind in KINDS.items() if kind.lane is not None}
LATE: Final = frozenset([message for message, kind in KINDS.items() if kind.is_late])
PERIODIC: Final = frozenset([message for message, kind in KINDS.items() if kind.is_periodic])
"""Messages that are sent at intervals: the next one makes up for a lost one, so no loss need be noticed."""

LATE_NS: Final = 5_000_000
SPARE_NS: Final = 10_000_000
"""If another replica fails and no node has noticed yet, an envelope takes twice this time longer."""
LOOK_NS: Final = 100_000_000
_HEAD_BYTES: Final = 64


class Outlet(Generic[Parcel]):
    """The way of one channel of a node to the other members.

    `peers` are all members, this node among them, if it has a replica; others have no late messages.
    """

    def __init__(
        self,
        pack: Callable[[said.BusMessage], Parcel],
        whole_bytes: int,
        *,
        node: int = 0,
        peers: Mapping[int, Peer] | None = None,
        is_spare: Callable[[int], bool] | None = None,
    ) -> None:
        self._pack = pack
        self._last: said.BusMessage | None = None
        self._packed: Parcel
        self._out: list[tuple[int | Lane, Parcel]] = []
        # Envelopes of this step, and the size of a frame with all of them.
        self._room = whole_bytes - _HEAD_BYTES
        self._gathered: list[said.Data] = []
        self._gathered_bytes = 0
        # The last `CommitSubmit` of this step, and its receivers.
        self._submit: said.CommitSubmit | None = None
        self._submit_to: list[int] = []
        # Members that hear late messages at once, and the others; and the messages these have not heard.
        others = {number: peer for number, peer in (peers or {}).items() if number != node}
        self._has_late = peers is not None
        self._at_once = [number for number, peer in others.items() if Lane.DELIVERIES in peer.lanes]
        self._others = {number for number in others if number not in self._at_once}
        hears = {number: Lane.DATA in peer.lanes for number, peer in others.items()}
        is_theirs = all(hears[to] for to in self._others) and not any(hears[to] for to in self._at_once)
        self._has_lane = is_theirs
        self._late: list[Parcel] = []
        # When `tick` must be called at the latest.
        self.late_at_ns: int | None = None
        self._is_spare = is_spare
        self._look_at_ns = 0
        self.gather_ns = 0
        """How long arrived frames may be left."""

    def multicast(self, message: said.BusMessage) -> None:
        kind = type(message)
        if kind is said.Data:
            self._gather(message)  # type: ignore[arg-type]
        elif self._has_late and kind in LATE:
            self._send_late(self._pack_once(message))
        else:
            lane = _LANES[kind]
            if self._late and lane is Lane.CONTROL:
                self._release_late()
            self._out.append((lane, self._pack_once(message)))

    def send(self, to: int, message: said.BusMessage) -> None:
        if self._has_late and self._has_lane and type(message) is said.CommitSubmit:
            if message is not self._submit:
                self._send_submitted()
                self._submit = message
            self._submit_to.append(to)
            return
        if self._late and to in self._others:
            self._release_late()
        self._out.append((to, self._pack_once(message)))

    def settle(self) -> None:
        """Pack the gathered messages."""
        self._send_submitted()
        gathered = self._gathered
        if gathered:
            message = gathered[0] if len(gathered) == 1 else said.Envelopes(tuple(gathered))
            self._out.append((Lane.DATA, self._pack(message)))
            self._gathered, self._gathered_bytes = [], 0

    def flush(self, now_ns: int) -> list[tuple[int | Lane, Parcel]]:
        """End the step; returns the frames that leave, in order."""
        if self._gathered or self._submit is not None:
            self.settle()
        if not self._late:
            self.late_at_ns = None
        elif self.late_at_ns is None:
            self.late_at_ns = now_ns + LATE_NS
        if self._is_spare is not None and now_ns >= self._look_at_ns:
            self._look_at_ns = now_ns + LOOK_NS
            self.gather_ns = SPARE_NS if self._is_spare(now_ns) else 0
        leaving, self._out = self._out, []
        return leaving

    def tick(self, now_ns: int) -> list[tuple[int | Lane, Parcel]]:
        if self.late_at_ns is None or now_ns < self.late_at_ns:
            return []
        self.late_at_ns = None
        self._release_late()
        leaving, self._out = self._out, []
        return leaving

    def _pack_once(self, message: said.BusMessage) -> Parcel:
        # A message to several members usually comes several times in a row.
        if message is not self._last:
            self._last, self._packed = message, self._pack(message)
        return self._packed

    def _gather(self, data: said.Data) -> None:
        size = len(data.payload) + said.ENVELOPE_BYTES
        if self._gathered and self._gathered_bytes + size > self._room:
            self.settle()
        self._gathered.append(data)
        self._gathered_bytes += size

    def _send_submitted(self) -> None:
        """Send the `CommitSubmit`: in one datagram if it is for all listeners of the lane, as usual."""
        submit = self._submit
        if submit is None:
            return
        self._release_late()
        parcel = self._pack_once(submit)
        if self._others == set(self._submit_to):
            self._out.append((Lane.DATA, parcel))
        else:
            self._out += [(to, parcel) for to in self._submit_to]
        self._submit, self._submit_to = None, []

    def _send_late(self, parcel: Parcel) -> None:
        if len(self._at_once) == 1:
            # Together with other messages to that member alone.
            self._out.append((self._at_once[0], parcel))
        elif self._at_once:
            self._out.append((Lane.DELIVERIES, parcel))
        if self._others:
            self._late.append(parcel)

    def _release_late(self) -> None:
        late, self._late = self._late, []
        for parcel in late:
            if self._has_lane:
                self._out.append((Lane.DATA, parcel))
            else:
                self._out += [(to, parcel) for to in sorted(self._others)]
