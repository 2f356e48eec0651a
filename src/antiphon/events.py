"""The events that a node logs: each kind is declared here once, with a code that stays.

EVT1  An event has the code of its kind, and values in named fields. The sentence is made of both, so that no
      text of a peer is ever a format.
EVT2  The texts in the fields of a shown event are printable and short, whatever a peer has sent.

The page `docs/reference/events.md` is made of these declarations. `event_log.py` bounds, prints and publishes
the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from antiphon.values import PropertyValue

TEXT_LENGTH_MAX: Final = 300
"""The characters of one field; of a longer text the event has the beginning."""


MEMBER: Final = "member"
"""The field of another node."""


class Severity(IntEnum):
    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()


SEVERITIES: Final = tuple(severity.word for severity in Severity)


class LoggedEvent(NamedTuple):
    """Something that an operator may want to know."""

    kind: EventKind
    fields: tuple[tuple[str, PropertyValue], ...]

    @property
    def text(self) -> str:
        """The sentence, without what only the node that logs the event knows."""
        return self.shown({}).sentence("this node", "")

    def shown(self, names: Mapping[int, str]) -> LoggedEvent:
        """The event as it is shown: with the member's name, where a machine has only its number (EVT2)."""
        fields = [(name, _shown(name, value, names)) for name, value in self.fields]
        return LoggedEvent(self.kind, tuple(fields))

    def sentence(self, node: str, channel: str) -> str:
        return self.kind.template.format_map({"node": node, "channel": channel, **dict(self.fields)})


class EventKind(NamedTuple):
    code: str
    severity: Severity
    template: str
    meaning: str
    sums: str = ""
    """The field of a number that is added up over events which are otherwise equal."""

    def __call__(self, **fields: PropertyValue) -> LoggedEvent:
        return LoggedEvent(self, tuple(fields.items()))


def printable(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """The text as one line that shows everything in it: `a\\nb` has no line break, but says where one was.

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    cut = text[:length_max]
    if not cut.isprintable():
        cut = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
            for letter in cut
        )
    return cut if len(text) <= length_max else f"{cut}... ({len(text)} characters)"


def _shown(field: str, value: PropertyValue, names: Mapping[int, str]) -> PropertyValue:
    if field == MEMBER and isinstance(value, int):
        return names.get(value, f"node {value}")
    return printable(value) if isinstance(value, str) else value


KINDS: Final[dict[str, EventKind]] = {}


def _declare(code: str, severity: Severity, template: str, meaning: str, *, sums: str = "") -> EventKind:
    assert code not in KINDS, f"two kinds of events have the code {code}"
    kind = KINDS[code] = EventKind(code, severity, template, meaning, sums)
    return kind


_INFO, _WARNING, _ERROR = Severity

# --- nodes ---------------------------------------------------------------------------------------

NODE_STARTED: Final = _declare(
    "node.started", _INFO, "{node} has started as {role}", "A node has taken its first step in this life."
)
NODE_STOPPING: Final = _declare(
    "node.stopping", _INFO, "{node} is stopping", "A node was asked to stop, and leaves in order."
)
NODE_FAILED: Final = _declare(
    "node.failed",
    _ERROR,
    "the node stops: {problem}",
    "A node ends because of an error that it cannot go on with. Only its file has this event.",
)
NODE_DOWN: Final = _declare(
    "node.down",
    _WARNING,
    "nothing has been heard of {member} for {seconds:.0f} s",
    "Another node has fallen silent: it has ended, hangs, or the network between them is broken. Every node "
    "that waits for it says so.",
)
NODE_UP: Final = _declare(
    "node.up", _INFO, "{member} is heard again, after {seconds:.0f} s", "A node that was silent is there."
)
NODE_RECOVERED: Final = _declare(
    "node.recovered",
    _INFO,
    "this node has recovered channel {channel}: its disk had the order through {found:,}, it has applied "
    "{applied:,}",
    "A node that was started with a disk has caught up with its channel.",
)

# --- channels ------------------------------------------------------------------------------------

EPOCH_BEGAN: Final = _declare(
    "epoch.began",
    _INFO,
    "epoch {epoch} of channel {channel} begins, led by {member}",
    "Another sequencer gives the numbers of a channel.",
)
PRIMARY_MOVED: Final = _declare(
    "primary.moved",
    _INFO,
    "channel {channel} is served by {member}{words}",
    "A channel has a primary, another one than before, or the same one in a new term. The new primary "
    "publishes this; the files of the other nodes have it, too.",
)
CHANNEL_UNSERVED: Final = _declare(
    "channel.unserved",
    _WARNING,
    "nobody has served channel {channel} for {seconds:g} s, {member} did before: messages for it wait",
    "A client manager hears no primary of a channel any more.",
)
CHANNEL_AWAY: Final = _declare(
    "channel.away",
    _WARNING,
    "nobody serves channel {away} yet; clients are let in all the same",
    "A client manager has waited for the primary of a channel when it started.",
)
CHANNEL_SERVED: Final = _declare(
    "channel.served",
    _INFO,
    "channel {channel} is served by {member} again",
    "A client manager hears the primary that it had not heard for a while.",
)
MAJORITY_LOST: Final = _declare(
    "majority.lost",
    _WARNING,
    "channel {channel} has lost its majority: nothing is heard of {members}. Nothing is stored until "
    "{needed} are there",
    "Too many nodes of a channel are silent. The event can be published only when they are back.",
)
MAJORITY_REGAINED: Final = _declare(
    "majority.regained", _INFO, "channel {channel} has its majority again", "Enough nodes are there again."
)
PRODUCER_FENCED: Final = _declare(
    "producer.fenced",
    _WARNING,
    "{member} was silent for so long that its run was fenced in channel {channel}",
    "What the node had under way there is not ordered any more, and its consumers' messages go to others.",
)
CLOCK_DIFFERS: Final = _declare(
    "clock.differs",
    _WARNING,
    "{problem}",
    "The clock of a primary's machine differs much from the time of the channel's log.",
)

# --- replicas ------------------------------------------------------------------------------------

REPLICA_LEFT: Final = _declare(
    "replica.left_behind",
    _WARNING,
    "{member} is {lag:,} numbers behind and is left to catch up by itself",
    "A replica is so slow that the others do not wait for it any more.",
)
REPLICA_JOINING: Final = _declare(
    "replica.joining",
    _WARNING,
    "this node has no copy of channel {channel} that it could go on with, and gets one from the others",
    "A replica has an empty disk, or one that was put aside, or its log is too far behind.",
)
REPLICA_JOINED: Final = _declare(
    "replica.joined", _INFO, "this node has a copy of channel {channel} again", "A replica is complete again."
)
REPLICA_WANTED: Final = _declare(
    "replica.wanted",
    _WARNING,
    "configuration {configuration} wants state of this node: it has to start again",
    "The node was a witness and is to keep messages.",
)
STATES_DIFFER: Final = _declare(
    "state.diverged",
    _ERROR,
    "DIVERGENCE: {problem}",
    "Two replicas have different states after the same number. Nothing is deleted until an operator has "
    "looked.",
)

# --- disks and records ---------------------------------------------------------------------------

DISK_NOTE: Final = _declare(
    "disk.note", _WARNING, "{note}", "What a node found on its disk when it started, and mended or cut off."
)
DISK_ALARM: Final = _declare(
    "disk.alarm",
    _ERROR,
    "{problem}",
    "What a node found damaged on its disk when it started. It goes on with the help of other nodes.",
)
DISK_LOW: Final = _declare(
    "disk.low",
    _ERROR,
    "{problem}; nothing more is published until there is room",
    "The disk of a replica is nearly full, or full.",
)
DISK_AMPLE: Final = _declare(
    "disk.ample", _INFO, "there is room on the disk again", "A disk that was nearly full has room."
)
SYNC_SLOW: Final = _declare(
    "sync.slow",
    _WARNING,
    "slow syncs of the disk: {count:,}, of up to {ms:,} ms",
    "A disk takes very long to make something durable. Every confirmation of the channel waits for that. "
    "A minute's are told together.",
)
RECORD_DAMAGED: Final = _declare(
    "record.damaged",
    _ERROR,
    "{problem}; another replica is asked for it",
    "A record of messages cannot be read any more.",
)
RECORD_MENDED: Final = _declare(
    "record.mended",
    _INFO,
    "the record at byte {offset} of segment {segment} was written anew, with what {member} has",
    "A damaged record is whole again.",
)
ENVELOPE_UNREADABLE: Final = _declare(
    "envelope.unreadable",
    _ERROR,
    "{envelope} cannot be read: {problem}",
    "An envelope on the disk is damaged. The node gets it from another one.",
)
ENVELOPE_DIFFERS: Final = _declare(
    "envelope.differs",
    _ERROR,
    "{envelope} {problem}",
    "Two nodes, or the order and a node, have different contents of one envelope.",
)
CHECKPOINT_UNREADABLE: Final = _declare(
    "checkpoint.unreadable",
    _ERROR,
    "{problem}",
    "A checkpoint, or a record that it refers to, cannot be read when another node asks for it.",
)
CHECKPOINT_REFUSED: Final = _declare(
    "checkpoint.refused",
    _ERROR,
    "{member} gave {problem}; it is not taken",
    "A node that joins was sent a checkpoint that cannot be used, and asks another node.",
)
BATCH_UNREADABLE: Final = _declare(
    "batch.unreadable",
    _ERROR,
    "{problem}",
    "A stored batch verifies and cannot be read: its messages stay where they are, and are not delivered.",
)

# --- messages and clients ------------------------------------------------------------------------

PATTERN_UNDECIDED: Final = _declare(
    "pattern.undecided",
    _ERROR,
    "channel {channel} cannot tell which topics belong to {pattern}: {problem}",
    'A primary without google-re2 cannot evaluate a pattern of match="regex". New topics keep their messages '
    "for its subscriptions until a primary can.",
)
MESSAGES_DEAD: Final = _declare(
    "messages.dead",
    _WARNING,
    "messages of {destination} have died: {count:,} ({reason})",
    "Messages came back too often, were rejected, or expired, and were moved to the dead queue or dropped. "
    "The counts of ten seconds are added up.",
    sums="count",
)
FLOW_BEGUN: Final = _declare(
    "flow.begun",
    _WARNING,
    "channel {channel} takes no messages: {reason}",
    "Producers of a channel have to wait.",
)
FLOW_ENDED: Final = _declare(
    "flow.ended", _INFO, "channel {channel} takes messages again", "Producers need not wait any more."
)
CLIENT_REFUSED: Final = _declare(
    "client.refused",
    _INFO,
    "connection of {peer} closed: {reason}: {problem}",
    "A client said what it may not, or was too slow, and its connection was closed. `reason` is the code of "
    "an error.",
)
CLIENTS_UNPROTECTED: Final = _declare(
    "client.unprotected",
    _WARNING,
    "clients connect to {host} without TLS: others may read what they send",
    "A node listens for clients on an address that other machines reach, and has no certificate.",
)
FRAME_REFUSED: Final = _declare(
    "frame.refused",
    _WARNING,
    "a frame of {member} is not taken: {problem} (said once, counted from now on)",
    "A frame between nodes made no sense. Said once for each channel, and counted from then on.",
)

# --- the log itself ------------------------------------------------------------------------------

EVENTS_LEFT_OUT: Final = _declare(
    "log.left_out",
    _WARNING,
    "events of {of} that were left out within {seconds:g} s: {count:,}",
    "There were too many events of one code, or in all. This says how many of them neither the file nor "
    "`topic:_LOG` has.",
)
EVENTS_UNPUBLISHED: Final = _declare(
    "log.unpublished",
    _WARNING,
    "events of {node} that could not be published: {count:,}; its file has them",
    "The channels took nothing for so long that there was no room for more events.",
)
EVENTS_UNWRITTEN: Final = _declare(
    "log.unwritten",
    _WARNING,
    "events that could not be written to this file: {count:,} ({problem})",
    "The file could not be written, because the disk was full for example. Only the file has this event.",
)
