"""What happens to the machines of a node, and what they ask the world to do.

Events are in the past tense, effects in the imperative. A machine's `step(now_ns, event)` returns
effects in the order in which they must be carried out. Two rules make crashes survivable:

    - `Append` effects are carried out in index order, and
    - `Synced(index)` is told only for a sync that began after every record up to `index` was written.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus.messages import BusMessage, Entry
from antiphon.ids import Mid
from antiphon.journal.ports import Location
from antiphon.wire.commands import Outcome


@dataclass(frozen=True, slots=True)
class DataRecord:
    """An envelope for the data region."""

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


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message to one node of the channel; to ourselves through the same queue as to others."""

    to: int
    message: BusMessage


@dataclass(frozen=True, slots=True)
class Multicast:
    """Hand a message to every member of the channel, ourselves among them."""

    message: BusMessage


@dataclass(frozen=True, slots=True)
class Append:
    """Write a record; `Synced` with this index or a later one will tell that it is durable."""

    index: int
    record: DataRecord | OrderRecord | SuperblockRecord


@dataclass(frozen=True, slots=True)
class Apply:
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
    """Write a checkpoint file; `CheckpointWritten` tells that it is durable."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSpace:
    """The base moved: what only numbers up to `base` needed may go."""

    base: int


@dataclass(frozen=True, slots=True)
class EnvelopeCommitted:
    """A producer's envelope has its numbers."""

    tag: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class EnvelopeConfirmed:
    """A producer's envelope is committed and applied; these of its numbers did not do what they asked."""

    tag: int
    first: int
    count: int
    exceptions: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class PrimaryChanged:
    """Who serves the channel, and in which term; told to the machines of this node."""

    term: int
    primary: int


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
    | ReleaseSpace
    | EnvelopeCommitted
    | EnvelopeConfirmed
    | PrimaryChanged
    | Alarm
)


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
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


@dataclass(frozen=True, slots=True)
class Submitted:
    """A part of this node wants an envelope of commands ordered."""

    tag: int
    payload: bytes
    count: int


@dataclass(frozen=True, slots=True)
class StateCaptured:
    """The message manager's answer to `TakeCheckpoint`."""

    n: int
    digest: bytes
    state: bytes
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint after number n is durable on this node."""

    n: int


@dataclass(frozen=True, slots=True)
class SpaceChanged:
    """Room on the disk is getting low, or is not any more. While it is low, this is said again and again.

    When it is tight, too, what is left is for what frees room: no publication may take it.
    """

    is_low: bool
    is_tight: bool = False
    text: str = ""


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


Event = Received | Synced | Ticked | Submitted | StateCaptured | CheckpointWritten | SpaceChanged

RoleEvent = Event | Learned
"""What a role of a replica is stepped with."""

RoleEffect = Effect | Learned
"""What a role of a replica answers."""
