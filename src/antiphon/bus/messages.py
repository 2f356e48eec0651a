"""What the nodes of a channel say to each other.

One frozen dataclass per message, nouns named as in the protocol. `codec.py` gives each its bytes;
the memory transport hands the objects over as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

# Named here, too: whoever speaks on the bus finds everything that is said on it in one place.
from antiphon.bus.tier_messages import (
    AdminAnswer as AdminAnswer,
)
from antiphon.bus.tier_messages import (
    AdminAsk as AdminAsk,
)
from antiphon.bus.tier_messages import (
    Advertised as Advertised,
)
from antiphon.bus.tier_messages import (
    BrowseReply as BrowseReply,
)
from antiphon.bus.tier_messages import (
    BrowseRequest as BrowseRequest,
)
from antiphon.bus.tier_messages import (
    ConsumerCredit as ConsumerCredit,
)
from antiphon.bus.tier_messages import (
    ConsumerEnded as ConsumerEnded,
)
from antiphon.bus.tier_messages import (
    Credits as Credits,
)
from antiphon.bus.tier_messages import (
    Deliver as Deliver,
)
from antiphon.bus.tier_messages import (
    DeliverAck as DeliverAck,
)
from antiphon.bus.tier_messages import (
    DeliverHead as DeliverHead,
)
from antiphon.bus.tier_messages import (
    Drained as Drained,
)
from antiphon.bus.tier_messages import (
    InDoubt as InDoubt,
)
from antiphon.bus.tier_messages import (
    Lookup as Lookup,
)
from antiphon.bus.tier_messages import (
    LookupReply as LookupReply,
)
from antiphon.bus.tier_messages import (
    Piece as Piece,
)
from antiphon.bus.tier_messages import (
    RangeAsk as RangeAsk,
)
from antiphon.bus.tier_messages import (
    RangeReply as RangeReply,
)
from antiphon.bus.tier_messages import (
    RangeRequest as RangeRequest,
)
from antiphon.bus.tier_messages import (
    RangeTold as RangeTold,
)
from antiphon.bus.tier_messages import (
    Register as Register,
)
from antiphon.bus.tier_messages import (
    Registered as Registered,
)
from antiphon.bus.tier_messages import (
    SessionDetached as SessionDetached,
)
from antiphon.bus.tier_messages import (
    SessionDetachedHeard as SessionDetachedHeard,
)
from antiphon.bus.tier_messages import (
    Taker as Taker,
)
from antiphon.bus.tier_messages import (
    Target as Target,
)
from antiphon.bus.tier_messages import (
    Unfinished as Unfinished,
)
from antiphon.bus.tier_messages import (
    Unregister as Unregister,
)
from antiphon.bus.tier_messages import (
    Unregistered as Unregistered,
)
from antiphon.ids import MID_STRUCT, Mid
from antiphon.wire.commands import Outcome


class EntryKind(IntEnum):
    """What one entry of the channel's log is about."""

    DATA = 1
    PRODUCER_OPEN = 2
    PRODUCER_FENCE = 3
    PRIMARY_CLAIM = 4
    QUANTITY = 5
    TICK = 6
    CHECKPOINT_MARK = 7
    CHECKPOINT_STABLE = 8
    CONFIG = 9
    VOID = 10


class Entry(NamedTuple):
    """One place in the log: the numbers first … first+count-1 belong to envelope `mid`.

    Entries other than DATA are made by the sequencer itself and have no payload; what little they
    say is in `detail`.
    """

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    kind: EntryKind
    mid: Mid
    ts: int
    digest: bytes
    detail: bytes = b""

    @property
    def last(self) -> int:
        """The last number of this entry."""
        return self.first + self.count - 1


NO_DIGEST = bytes(16)
# mid, ts, count: what is under the digest beside the payload.
_DIGEST_HEAD = Struct(MID_STRUCT.format + "QI")


def digest_of(mid: Mid, ts: int, count: int, payload: bytes | memoryview) -> bytes:
    """XXH3-128 over an envelope: guards against accidents, and is the record's checksum at rest."""
    pid, pe, pseq = mid
    return digest_of_parts(pid, pe, pseq, ts, count, payload)


def digest_of_parts(pid: int, pe: int, pseq: int, ts: int, count: int, payload: bytes | memoryview) -> bytes:
    """The same, for who has taken the id apart already."""
    # Two hashes rather than one over a joined copy: the payload may be two megabytes.
    return xxh3_128_digest(_DIGEST_HEAD.pack(pid, pe, pseq, ts, count) + xxh3_128_digest(payload))


class NackReason(IntEnum):
    """Why the sequencer will not number an envelope."""

    DUPLICATE = 1
    FENCED = 2
    EXPIRED = 3
    GAP = 4
    NOT_OPEN = 6
    DIGEST = 7


class SpaceState(IntEnum):
    """How much room the primary's disk has, for those who publish."""

    AMPLE = 0
    LOW = 1
    TIGHT = 2


class ServerStatus(IntEnum):
    """What a commit server can say about its disk."""

    OK = 0
    NO_SPACE = 1
    DAMAGED = 2
    # Its disk is not the one that the configuration lists: it has nothing to vote with.
    AMNESIA = 3
    # Its configuration is over; the refusal names the next one.
    RETIRED = 4


class ReportItem(NamedTuple):
    """One envelope that a data server holds durably; `size` is the length of its payload."""

    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    size: int = 0


class Data(NamedTuple):
    """An envelope, from its producer to all data servers.

    A tuple and not a dataclass like its neighbours: it is made for every envelope that passes.
    """

    mid: Mid
    ts: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    digest: bytes
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Several DATA that one producer sent in one step, each as good as if it had come alone."""

    items: tuple[Data, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """A data server to a producer: that envelope is committed already, up to and including its pseq."""

    mid: Mid


@dataclass(frozen=True, slots=True)
class DataReport:
    """A data server to the sequencer: these envelopes are durable here."""

    epoch_hint: int
    items: tuple[ReportItem, ...]


@dataclass(frozen=True, slots=True)
class ReportNack:
    """The sequencer to a data server, which passes it on to the producer."""

    epoch: int
    mid: Mid
    reason: NackReason
    argument: int = 0


@dataclass(frozen=True, slots=True)
class ProducerOpen:
    """A node asks the sequencer to open it as a producer of this channel; idempotent per run id."""

    pid: int
    run_id: bytes


@dataclass(frozen=True, slots=True)
class ProducerOpened:
    """The sequencer answers a repeated `ProducerOpen`: it is committed already, as number `pe`."""

    pid: int
    run_id: bytes
    pe: int


@dataclass(frozen=True, slots=True)
class CommitSubmit:
    """The sequencer to the commit servers: append these behind `prev`."""

    epoch: int
    prev: int
    entries: tuple[Entry, ...]
    committed_upto: int
    config_id: int = 1


@dataclass(frozen=True, slots=True)
class CommitAcknowledge:
    """A commit server: my log of this epoch is durable through `last`."""

    epoch: int
    last: int
    status: ServerStatus = ServerStatus.OK


@dataclass(frozen=True, slots=True)
class Commit:
    """The sequencer to all: these entries are committed."""

    epoch: int
    entries: tuple[Entry, ...]
    committed_upto: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sequencer to all, periodically; also tells whether the primary serves, and how far it applied."""

    epoch: int
    committed_upto: int
    stable_checkpoint: int
    nonce: int
    applied: int
    serving: bool
    space: SpaceState = SpaceState.AMPLE


@dataclass(frozen=True, slots=True)
class HeartbeatAck:
    """A commit server answers a heartbeat, so that the sequencer knows it still leads a quorum; also tells
    whether checkpoints would free segments of its journal."""

    epoch: int
    nonce: int
    holds_space: bool = False


@dataclass(frozen=True, slots=True)
class PreSeal:
    """A candidate asks whether anybody still hears a sequencer (liveness only)."""

    counter: int
    # How far the candidate has applied: one that lags far behind had better not lead.
    applied: int = 0


@dataclass(frozen=True, slots=True)
class PreSealOk:
    """A commit server has not heard a heartbeat within the suspicion time."""

    counter: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A candidate asks the commit servers to promise its epoch."""

    epoch: int
    candidate_committed: int
    config_id: int = 1


@dataclass(frozen=True, slots=True)
class SealOk:
    """A commit server promised the epoch (durably) and tells where its log stands."""

    epoch: int
    log_epoch: int
    base: int
    last: int
    committed_upto: int


@dataclass(frozen=True, slots=True)
class SealNack:
    """A commit server refuses: it promised a higher epoch, or it may not vote.

    `config` is the configuration that followed the asker's, encoded, when that one is over.
    """

    promised: int
    status: ServerStatus = ServerStatus.OK
    config: bytes = b""


@dataclass(frozen=True, slots=True)
class FetchLog:
    """A candidate asks a commit server that promised its epoch for log entries, in pages."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class FetchLogReply:
    """Entries from `start` on; `last` tells where the log ends."""

    epoch: int
    start: int
    entries: tuple[Entry, ...]
    last: int


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The new sequencer to a commit server: your log is your prefix below `from_seq` plus these.

    `log_epoch` is that of the adopted log. Of two logs of one epoch one is a prefix of the other, so a
    server whose log is of that epoch may keep more of it than it knows to be committed.

    A long log comes in pages. Nothing changes before the last of them: a server answers the others with a
    START_NEED for the next.
    """

    epoch: int
    from_seq: int
    entries: tuple[Entry, ...]
    committed_upto: int
    log_epoch: int = 0
    # Under which configuration this epoch leads: a server that knows of a later one refuses.
    config_id: int = 1
    # Where the log ends if more pages follow, else 0.
    through: int = 0


@dataclass(frozen=True, slots=True)
class StartNeed:
    """A commit server cannot take a submit or a start: its log, of `log_epoch`, stands elsewhere."""

    epoch: int
    committed_upto: int
    last: int
    log_epoch: int = 0


@dataclass(frozen=True, slots=True)
class FetchId:
    """A member asks a commit server for committed entries from number `first` on."""

    first: int
    most: int


@dataclass(frozen=True, slots=True)
class FetchIdReply:
    """Committed entries; `base` tells how far back this server's log reaches."""

    entries: tuple[Entry, ...]
    committed_upto: int
    base: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """A member asks a data server for payloads.

    Beside each id stands the first number of its entry, or 0 if it has none yet: a data server finds
    what it has delivered by number, and what waits by id.
    """

    mids: tuple[Mid, ...]
    firsts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchDataReply:
    """Payloads it has, and the ids it does not know."""

    items: tuple[Data, ...]
    unknown: tuple[Mid, ...]


@dataclass(frozen=True, slots=True)
class FetchRange:
    """A member that is far behind asks for committed entries and their payloads in one trip."""

    first: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class FetchRangeReply:
    """Committed entries from the one that covers `first` on, with the payloads that this server has."""

    entries: tuple[Entry, ...]
    items: tuple[Data, ...]
    committed_upto: int
    base: int


@dataclass(frozen=True, slots=True)
class ProducerStateGet:
    """A producer that was away for longer than the log reaches back asks a replica what became of it."""

    pid: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The row of a producer after number `upto`; all of pe up to last_pseq is committed, nothing else is."""

    pid: int
    upto: int
    pe: int
    last_pseq: int
    last_seq: int
    previous_pe: int
    previous_last_pseq: int
    run_id: bytes


@dataclass(frozen=True, slots=True)
class CheckpointGet:
    """A joiner asks for a piece of the stable checkpoint at `n`; 0: which does the server have?"""

    n: int
    offset: int


@dataclass(frozen=True, slots=True)
class CheckpointChunk:
    """A piece of the checkpoint at `n`, whose whole has this digest and size; n is 0 if there is none.

    Without data it only tells what the sender has: it was asked for that, or for one that it has no more.
    """

    n: int
    digest: bytes
    size: int
    offset: int
    data: bytes | memoryview
    # XXH3-128 of the data: of what stands in a checkpoint, its digest covers only the logical state.
    checksum: bytes = NO_DIGEST


class Place(NamedTuple):
    """Where the holder's journal has a record, which means nothing to others, and which envelope it is."""

    segment: int
    offset: int
    length: int
    identity: int


@dataclass(frozen=True, slots=True)
class StoredGet:
    """A joiner asks for the envelopes that lie where the checkpoint at `n` says, in the holder's journal."""

    n: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class StoredReply:
    """Of the places that were asked for, the first ones with their envelopes, as many as fit.

    A place that is passed over cannot be read here, and so is the first one if there is none at all.
    """

    n: int
    places: tuple[Place, ...]
    items: tuple[Data, ...]
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class BatchGet:
    """A replica asks another for the envelopes that stored batches came in: some of its own are damaged.

    A batch is named by its destination and its first number, which are the same on all replicas.
    """

    destinations: tuple[int, ...]
    firsts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchReply:
    """Of the batches that were asked for, those that are stored here and can be read, as many as fit."""

    destinations: tuple[int, ...]
    firsts: tuple[int, ...]
    items: tuple[Data, ...]


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint server: my checkpoint after number n is durable and has this digest."""

    seq: int
    digest: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Presence:
    """Every member to its channels, periodically: liveness and drift only, never safety."""

    name: str
    role: str
    applied: int
    synchronized: bool
    config_digest: bytes
    load: int
    config_id: int = 1


@dataclass(frozen=True, slots=True)
class Applied:
    """The primary to all: everything through `upto` is applied and did what it asked, but for these.

    What it says concerns the numbers behind `after`: who has not heard up to there asks (`AppliedGet`).
    Of what became of the numbers through `floor`, nobody can tell any more.
    """

    epoch: int
    upto: int
    exceptions: tuple[Outcome, ...] = ()
    after: int = 0
    floor: int = 0


@dataclass(frozen=True, slots=True)
class AppliedGet:
    """A producer missed what was said about the numbers behind `after`; any replica may answer."""

    after: int


SESSION_DETACHED: Final = "session.detached"
"""The code of a refusal to attach a consumer: in the eyes of the channel, nobody has its session."""


BusMessage = (
    Data
    | Envelopes
    | Published
    | DataReport
    | ReportNack
    | ProducerOpen
    | ProducerOpened
    | CommitSubmit
    | CommitAcknowledge
    | Commit
    | Heartbeat
    | HeartbeatAck
    | PreSeal
    | PreSealOk
    | Seal
    | SealOk
    | SealNack
    | FetchLog
    | FetchLogReply
    | EpochStart
    | StartNeed
    | FetchId
    | FetchIdReply
    | FetchData
    | FetchDataReply
    | FetchRange
    | FetchRangeReply
    | ProducerStateGet
    | ProducerState
    | CheckpointReport
    | CheckpointGet
    | CheckpointChunk
    | StoredGet
    | StoredReply
    | BatchGet
    | BatchReply
    | Presence
    | Applied
    | AppliedGet
    | Register
    | Registered
    | Unregister
    | Unregistered
    | SessionDetached
    | SessionDetachedHeard
    | Credits
    | Deliver
    | DeliverHead
    | DeliverAck
    | ConsumerEnded
    | Drained
    | BrowseRequest
    | BrowseReply
    | RangeRequest
    | RangeReply
    | RangeAsk
    | RangeTold
    | Lookup
    | LookupReply
    | Advertised
    | InDoubt
    | Unfinished
    | AdminAsk
    | AdminAnswer
)
