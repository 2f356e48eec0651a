"""The events and effects of the machines of a node.

Events are in the past tense, effects in the imperative. A machine's `step(now_ns, events)` returns effects in
the order in which they must be carried out. Two rules make crashes survivable:

    - `Append` effects are carried out in index order, and
    - `Synced(index)` is told only for a sync that began after every record up to `index` was written.

Events and effects of every envelope are named tuples, which cost half of what a dataclass does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage, Entry, ReportItem
from antiphon.errors import Damaged
from antiphon.events import LoggedEvent
from antiphon.ids import Mid
from antiphon.journal.ports import Location
from antiphon.wire.commands import Outcome
from antiphon.wire.primitives import Buffer


class DataRecord(NamedTuple):
    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy of an envelope that a checkpoint of another node refers to; for the data region.

    The copy is not found by its id: `Payloads.copied(index)` tells where it lies.
    """

    mid: Mid
    ts: int
    count: int
    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """A record for the order regions, encoded by `records.py`.

    `highest` is the largest number in it; its segment is kept until a stable checkpoint covers that.
    A `pinned` record is kept until the next pinned one is written. After a crash in which it was not durable
    a `bound` record comes back only if all envelopes that were written before it do.
    """

    body: bytes
    highest: int
    pinned: bool = False
    bound: bool = False


@dataclass(frozen=True, slots=True)
class SuperblockRecord:
    """The epochs that a commit server and a candidate may never forget."""

    promised: int
    epoch_claimed: int


# --- effects -----------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send a message to a node of the channel; to this node through the same queue as to others."""

    to: int
    message: BusMessage


class Multicast(NamedTuple):
    """Send a message to every node of the channel, this node among them."""

    message: BusMessage


class Append(NamedTuple):
    """Write a record; `Synced` with this index or a later one tells that it is durable."""

    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    record: DataRecord | OrderRecord | SuperblockRecord | CopyRecord


class Apply(NamedTuple):
    """Deliver an entry to the message manager: committed, in order, locally durable."""

    entry: Entry
    payload: memoryview | None
    location: Location | None


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Capture the state after number n, now: nothing later is applied before."""

    n: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write a checkpoint file; `CheckpointWritten` or, without room, `CheckpointFailed` answers."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Read a piece of a checkpoint file of ours for node `to`; `CheckpointRead` answers.

    `offset` counts from the beginning of its `state`. Successive pieces verify the file once.
    """

    n: int
    offset: int
    length: int
    to: int


@dataclass(frozen=True, slots=True)
class DataWaits:
    """Whether envelopes are to wait, for as long as a sync takes, so that one sync serves their entries, too.

    Of a replica that follows a sequencer which numbers envelopes when they arrive.
    """

    is_so: bool


@dataclass(frozen=True, slots=True)
class HoldCheckpoints:
    """Keep our checkpoints from number n on, with their records, until the next such effect; 0 for none."""

    n: int


@dataclass(frozen=True, slots=True)
class OpenState:
    """Read another node's state after number n and keep it beside the present one; `StateOpened` answers."""

    n: int
    state: Buffer


@dataclass(frozen=True, slots=True)
class MoveState:
    """Point the opened state to its records in this journal; `StateCaptured` answers with its new bytes."""

    n: int
    moved: tuple[tuple[Location, Location], ...]


@dataclass(frozen=True, slots=True)
class InstallState:
    """Make the opened and moved state the state of the message manager."""

    n: int


@dataclass(frozen=True, slots=True)
class DropState:
    """Drop the opened state."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Write a damaged record anew, elsewhere; `data` is its right contents.

    `Referrer.relocated` tells the message manager where. Without room the effect is emitted again.
    """

    place: Location
    record: CopyRecord


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A record here cannot be read; for the message manager, whose state may refer to it."""

    place: Location
    error: Damaged


@dataclass(frozen=True, slots=True)
class ReleaseSpace:
    """The base moved: free what only numbers up to `base` needed."""

    base: int


class EnvelopeCommitted(NamedTuple):
    """A producer's envelope has its numbers."""

    tag: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


class EnvelopeConfirmed(NamedTuple):
    """A producer's envelope is committed and applied; the commands at these numbers failed."""

    tag: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    exceptions: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class EnvelopeUncertain:
    """A producer's envelope is ordered once more: it may be in the order, at unknown numbers.

    The second place will be confirmed, and the sessions in the envelope recognise the repetition.
    """

    tag: int


@dataclass(frozen=True, slots=True)
class RunOver:
    """A fence stands behind the producer's run, which was open; for the machines of this node.

    What belonged to that run in the state of the channel has been taken from it.
    """


@dataclass(frozen=True, slots=True)
class PrimaryChanged:
    """Another primary serves the channel, in this term; for the machines of this node."""

    term: int
    primary: int


@dataclass(frozen=True, slots=True)
class TimeMissed:
    """By the primary's heartbeats more time has passed than by the clock of this node, which stood still."""


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """No node has served the channel for longer than a change of primary takes, or a node does again."""

    is_served: bool


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """The load of the channel, as its primary tells; for the machines of this node."""

    load: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The channel has another configuration from now on; for the machines of this node."""

    config: GroupConfig


@dataclass(frozen=True, slots=True)
class Alarm:
    """An event for the operator; the keeper of the journal tells its own."""

    event: LoggedEvent

    @property
    def text(self) -> str:
        return self.event.text


Effect = (
    Send
    | Multicast
    | Append
    | Apply
    | TakeCheckpoint
    | WriteCheckpoint
    | ReadCheckpoint
    | DataWaits
    | HoldCheckpoints
    | OpenState
    | MoveState
    | InstallState
    | DropState
    | Mend
    | Spoilt
    | ReleaseSpace
    | EnvelopeCommitted
    | EnvelopeConfirmed
    | EnvelopeUncertain
    | RunOver
    | PrimaryChanged
    | Reconfigured
    | Alarm
)


# --- events ------------------------------------------------------------------------------------


class Received(NamedTuple):
    """A message from a node of the channel, this node included.

    `disk_id` names the disk behind the sender's votes; it is empty for messages that came without a network.
    """

    sender: int
    message: BusMessage
    disk_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Synced:
    """Every record with an index up to this one is durable."""

    index: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """The deadline of the machine (`next_deadline_ns`) has come."""


class Submitted(NamedTuple):
    """A machine of this node wants an envelope of commands ordered."""

    tag: int
    payload: bytes
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


@dataclass(frozen=True, slots=True)
class ConfigProposed:
    """The channel is to have this configuration, whose id follows the present one's.

    Only a sequencer that leads orders it, one at a time; `Reconfigured` tells that it is in force.
    """

    config: GroupConfig


@dataclass(frozen=True, slots=True)
class BeatWanted:
    """A machine of this node waits until a quorum has answered a heartbeat; a sequencer at rest sends few."""


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """A record of this node about the order cannot be read any more.

    For the rest of this run its commit server does not vote and tells no node what is committed.
    """


@dataclass(frozen=True, slots=True)
class StateCaptured:
    """The message manager's answer to `TakeCheckpoint` and to `MoveState`."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint after number n is durable on this node; its file took so long, once it was begun."""

    n: int
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """There was no room for the checkpoint after number n."""

    n: int


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """The answer to `ReadCheckpoint`; `data` is None if the file is gone or does not verify."""

    n: int
    offset: int
    data: bytes | memoryview | None
    to: int


@dataclass(frozen=True, slots=True)
class StateOpened:
    """The message manager's answer to `OpenState`: the digest of the state, and the places of its records in
    the journal it came from. An empty digest: the state cannot be read.
    """

    n: int
    digest: bytes
    places: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class SpaceChanged:
    """Room on the disk is low, or is not any more. While it is low, the event is repeated.

    When room is tight, the rest is for effects that free room: no publication may take it. When the disk is
    full, records wait to be written, perhaps for long.
    """

    is_low: bool
    is_tight: bool = False
    text: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class SpaceHeld:
    """How many segments the journal has while the next two checkpoints would free some of them, else 0."""

    segments: int


@dataclass(frozen=True, slots=True)
class Learned:
    """The part of the order that this node knows to be committed, without a gap, grew.

    The member emits it to the other roles of its node. `entries` could not be applied yet; `notable` are all
    entries that are not DATA; `marks` are the encoded ledgers after each CHECKPOINT_MARK.
    """

    entries: tuple[Entry, ...]
    notable: tuple[Entry, ...]
    marks: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class EnvelopesArrived:
    """Envelopes that the data server of a node that leads has written, and that are not durable yet.

    For the sequencer of the node, which may number them at once (`GroupConfig.numbers_on_arrival`).
    """

    items: tuple[ReportItem, ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """This node begins again behind number n, with a checkpoint of another node, as if it had just started.

    For the roles of this node. `ledger` is the encoded fold of everything through n. If the node has applied
    more, only the commit server receives it: the log begins there.
    """

    n: int
    ledger: bytes


Event = (
    Received
    | Synced
    | Ticked
    | Submitted
    | StateCaptured
    | StateOpened
    | CheckpointWritten
    | CheckpointFailed
    | CheckpointRead
    | SpaceChanged
    | Alarm
    | SpaceHeld
    | ConfigProposed
    | BeatWanted
    | LogDamaged
)

RoleEvent = Event | Learned | EnvelopesArrived | Installed
"""The events of a role of a replica."""

RoleEffect = Effect | Learned | EnvelopesArrived | Installed
"""The effects of a role of a replica."""
