"""What happens to the machines of a node, and what they ask the world to do.

Events are in the past tense, effects in the imperative. A machine's `step(now_ns, event)` returns
effects in the order in which they must be carried out. Two rules make crashes survivable:

    - `Append` effects are carried out in index order, and
    - `Synced(index)` is told only for a sync that began after every record up to `index` was written.

What is made for every envelope is a tuple with names, which costs half of what a dataclass does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import BusMessage, Entry
from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal.ports import Location
from antiphon.wire.commands import Outcome
from antiphon.wire.primitives import Buffer


class DataRecord(NamedTuple):
    """An envelope for the data region."""

    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy of an envelope that a checkpoint of another node refers to; for the data region.

    It is not found by its id: `Payloads.copied(index)` tells where it lies.
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
    A `pinned` record is kept until the next pinned one is written.
    """

    body: bytes
    highest: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class SuperblockRecord:
    """What a commit server and a candidate may never forget."""

    promised: int
    epoch_claimed: int


# --- effects -----------------------------------------------------------------------------------


class Send(NamedTuple):
    """Hand a message to one node of the channel; to ourselves through the same queue as to others."""

    to: int
    message: BusMessage


class Multicast(NamedTuple):
    """Hand a message to every member of the channel, ourselves among them."""

    message: BusMessage


class Append(NamedTuple):
    """Write a record; `Synced` with this index or a later one will tell that it is durable."""

    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    record: DataRecord | OrderRecord | SuperblockRecord | CopyRecord


class Apply(NamedTuple):
    """The member delivers an entry to the message manager: committed, in order, locally durable."""

    entry: Entry
    payload: memoryview | None
    location: Location | None


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """The checkpoint server wants the state after number n, now: nothing later is applied before."""

    n: int


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write a checkpoint file; `CheckpointWritten` tells that it is durable, `CheckpointFailed` that
    there was no room for it: then nothing has changed, and it will be wanted again."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Read a piece of a checkpoint file of ours for node `to`; `CheckpointRead` brings it.

    `offset` counts from the beginning of what was written as its `state`. The file is verified as a
    whole, once for all pieces that are read one after the other.
    """

    n: int
    offset: int
    length: int
    to: int


@dataclass(frozen=True, slots=True)
class HoldCheckpoints:
    """Keep our checkpoints from number n on, and what they refer to, also when `ReleaseSpace` passes them.

    Holds until it is said again; 0 for none.
    """

    n: int


@dataclass(frozen=True, slots=True)
class OpenState:
    """Another node's state of the message manager after number n: look at it, answer `StateOpened`.

    It is kept beside the present state; a later one takes its place.
    """

    n: int
    state: Buffer


@dataclass(frozen=True, slots=True)
class MoveState:
    """The records that the opened state refers to lie here now: answer `StateCaptured` with its new bytes."""

    n: int
    moved: tuple[tuple[Location, Location], ...]


@dataclass(frozen=True, slots=True)
class InstallState:
    """The opened state, moved, is the state from now on; what follows in the order is applied to it."""

    n: int


@dataclass(frozen=True, slots=True)
class DropState:
    """The opened state is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Mend:
    """The record that lies there is damaged, and this is what it was: write it anew, elsewhere.

    The message manager is told where (`RecordKeeper.relocated`). If there is no room, nothing happens, and it
    will be wanted again.
    """

    place: Location
    record: CopyRecord


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A record here cannot be read; told to the message manager, whose state may refer to it."""

    place: Location
    error: Damaged


@dataclass(frozen=True, slots=True)
class ReleaseSpace:
    """The base moved: what only numbers up to `base` needed may go."""

    base: int


class EnvelopeCommitted(NamedTuple):
    """A producer's envelope has its numbers."""

    tag: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


class EnvelopeConfirmed(NamedTuple):
    """A producer's envelope is committed and applied; these of its numbers did not do what they asked."""

    tag: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    exceptions: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class EnvelopeUncertain:
    """A producer's envelope is ordered once more: it may be in the order, and nobody can tell as what.

    Confirmed is its second place. Sessions in it are told there that they came twice, and of what.
    """

    tag: int


@dataclass(frozen=True, slots=True)
class PrimaryChanged:
    """Who serves the channel, and in which term; told to the machines of this node."""

    term: int
    primary: int


@dataclass(frozen=True, slots=True)
class TimeMissed:
    """By the primary's heartbeats more time has passed than by the clock of this node, which stood still."""


@dataclass(frozen=True, slots=True)
class ServiceChanged:
    """Nobody has served the channel for longer than a change of primary takes, or somebody does again."""

    is_served: bool


@dataclass(frozen=True, slots=True)
class LoadChanged:
    """How much the channel has to keep, as its primary says; told to the machines of this node."""

    load: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The channel has another configuration from now on; told to the machines of this node."""

    config: GroupConfig


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something an operator must know."""

    text: str


Effect = (
    Send
    | Multicast
    | Append
    | Apply
    | TakeCheckpoint
    | WriteCheckpoint
    | ReadCheckpoint
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
    | PrimaryChanged
    | Reconfigured
    | Alarm
)


# --- events ------------------------------------------------------------------------------------


class Received(NamedTuple):
    """A message from a member of the channel, ourselves included.

    `disk_id` is what the sender's votes rest on; it is empty for what came without a network.
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
    """Time passed: `next_deadline_ns` of the machine has come."""


class Submitted(NamedTuple):
    """A part of this node wants an envelope of commands ordered."""

    tag: int
    payload: bytes
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


@dataclass(frozen=True, slots=True)
class ConfigProposed:
    """Somebody wants the channel to have this configuration, whose id follows the present one's.

    Only a sequencer that leads takes it up, one at a time; `Reconfigured` tells that it is in force.
    """

    config: GroupConfig


@dataclass(frozen=True, slots=True)
class LogDamaged:
    """Of what this node wrote about the order, something cannot be read any more.

    From now on its commit server does not vote and tells nobody what is committed, for it cannot know what it
    lost. That ends with this life.
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
    """The checkpoint after number n is durable on this node."""

    n: int


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
    """The message manager's answer to `OpenState`: the digest of what it read, and where the records lie
    that it refers to, in the journal it came from. An empty digest: it cannot be read."""

    n: int
    digest: bytes
    places: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class SpaceChanged:
    """Room on the disk is getting low, or is not any more. While it is low, this is said again and again.

    When it is tight, too, what is left is for what frees room: no publication may take it. When it is
    full, records wait to be written, and may wait for long.
    """

    is_low: bool
    is_tight: bool = False
    text: str = ""
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class SpaceHeld:
    """The journal holds more segments than one at rest, and the next two checkpoints would free them; or it
    does not any more."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class Learned:
    """The part of the order that this node knows to be committed, without a gap, grew.

    Told by the member to the other roles of its node, never to others. `entries` are those that it could
    not apply yet; `notable` are all that are not DATA, applied or not; `marks` are the ledgers, encoded,
    as they stood after each CHECKPOINT_MARK among them.
    """

    entries: tuple[Entry, ...]
    notable: tuple[Entry, ...]
    marks: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """This node begins again behind number n, with a checkpoint of another node, as if it had just started.

    Told among the roles of a node. `ledger` is the fold of everything through n, encoded. If the node has
    applied more, it is told to the commit server only: the log begins there.
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
    | SpaceHeld
    | ConfigProposed
    | LogDamaged
)

RoleEvent = Event | Learned | Installed
"""What a role of a replica is stepped with."""

RoleEffect = Effect | Learned | Installed
"""What a role of a replica answers."""
