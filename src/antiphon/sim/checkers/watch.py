"""Watch: what checkers can see, and the fan-out from the drivers to all of them.

The node runner tells what a node does, the workload tells what clients saw. A checker overrides
the hooks it needs; the others cost nothing. A checker that names the kinds of message it hears is not
asked about others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from antiphon.bus.messages import BusMessage, Entry, ServerStatus
from antiphon.ids import Mid
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.ranges import Ranges
from antiphon.sim.image import Image, Record
from antiphon.sim.world import Violation, World


class Checker:
    """One promise, watched."""

    promise = ""
    # The kinds of message that `on_sent` is told of; none means all.
    hears: tuple[type[Any], ...] = ()

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, text: str) -> NoReturn:
        """The promise was broken."""
        raise Violation(f"{self.promise}: {text}")

    # What a node does.

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        """A life of a node began with what it found on its disk, and with this checkpoint or 0."""

    def on_opened(self, node: int, disk_id: bytes, aside: int) -> None:
        """A life of a node begins with this disk; so many of its files lie in `lost+found`."""

    def on_refused(self, node: int, is_changed: bool) -> None:
        """A node refused to start; was anything on its disk changed meanwhile?"""

    def on_crashed(self, node: int) -> None:
        """A life of a node ended: everything that was not on its disk is gone."""

    def on_sent(self, node: int, message: BusMessage) -> None:
        """A machine of the node let a message go, to its own node or another."""

    def on_appended(self, node: int, index: int, record: Record) -> None:
        """The node wrote a record; it is not durable yet."""

    def on_durable(self, node: int, index: int) -> None:
        """The disk has finished a sync that began after this record was written."""

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        """The member of the node handed an entry to its message manager."""

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        """The message manager of the node has taken the entry; this is its state now."""

    def on_proposed(self, node: int, now_ns: int, wall_ms: int, command: bytes) -> None:
        """The primary wants a command of its own ordered, while its clocks show this."""

    def on_flushed(self, node: int) -> None:
        """The message manager of the node has said everything that it had to say, for now."""

    def on_restored(self, node: int, n: int) -> None:
        """A node took over the state after number n from another, in the middle of a life."""

    def on_discarded(self, node: int, mid: Mid) -> None:
        """A data server gave up an envelope."""

    def on_released(self, node: int, base: int) -> None:
        """A node gave up what only numbers up to `base` needed."""

    def on_files(self, node: int, disk: MemoryDisk, disk_id: bytes) -> None:
        """Files of the disk have come, gone, or are used again; or a life begins with them."""

    def on_status(self, node: int, status: ServerStatus) -> None:
        """The commit server of a node found out what its disk is worth; a life begins with OK."""

    # What is done to the disk of a node while it is down. The next life need not find what was there.

    def on_damaged(self, node: int) -> None:
        """Some of what the disk held is not readable any more, or says something else."""

    def on_replaced(self, node: int) -> None:
        """The node has another disk, an empty one."""

    # What producers of a node are asked and what they say. No two envelopes of a run are alike.

    def on_submitted(self, node: int, tag: int, payload: bytes) -> None:
        """A part of the node wants an envelope ordered."""

    def on_envelope_confirmed(self, node: int, tag: int, first: int, count: int) -> None:
        """It learned that its envelope is committed and applied, and where."""

    def on_envelope_uncertain(self, node: int, tag: int) -> None:
        """It orders an envelope once more, because nobody can tell whether it is in the order."""

    def at_end(self, facts: dict[int, NodeFacts]) -> None:
        """Nothing has failed for a while; `facts` is what every node that is up says of itself."""

    # What crosses the client port of the node, at the moment it leaves or enters the node.

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        """Messages with consecutive numbers left the node for a consumer."""

    def on_credit(self, node: int, holder: PortConsumer, through: int, sent: int | None) -> None:
        """The node heard that a consumer may be sent messages through this one; a new one has been `sent` so
        many before."""

    def on_sent_through(self, node: int, holder: PortConsumer, delivery: int) -> None:
        """Messages left the node for a consumer; the last of them is its so-manyth."""

    def on_drained(self, node: int, holder: PortConsumer) -> None:
        """The node told a client that a consumer has what there was, and no credit any more."""

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        """The node learned that a consumer is no more; what it held may go to others."""

    def on_attached(self, node: int, session: int, generation: int) -> None:
        """The node told a client that it has its session, under this generation."""

    def on_left(self, node: int, session: int, generation: int) -> None:
        """The node learned that this client is gone, or does not have the session any more."""

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        """The node heard that a client wants to hold these no longer; that is still to be ordered."""

    def on_kept(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        """The node let a consumer that came back keep these."""

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        """The node told a client that a consumer of it holds these no more."""

    def on_confirm_left(self, node: int, session: int, number: int, count: int, code: int, at: int) -> None:
        """The node told a client what became of its commands."""

    # What clients do and see.

    def on_published(self, session: int, number: int, bodies: Sequence[bytes]) -> None:
        """A client handed messages to its connection for the first time."""

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        """A client handed an acknowledgement to its connection for the first time; 0 for that of a queue."""

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        """A client learned what became of its commands."""

    def on_received(self, holder: PortConsumer, sequence: int, body: bytes, redelivered: int) -> None:
        """A message reached an application."""

    def on_given(self, channel: str, subscription: int, number: int, redelivered: int) -> None:
        """A client library handed a message to its application."""

    def on_begun(self, begun: Begun) -> None:
        """An application begins to work on a message."""

    def on_has(self, holder: PortConsumer, channel: str, numbers: Sequence[int]) -> None:
        """Something came to a consumer: all it has and has neither acknowledged nor given back, each copy."""

    def on_look(self, look: int, session: int, destination: int, after: int) -> None:
        """A client with this session asks to see what is stored behind a number."""

    def on_looked(self, look: int, through: int, numbers: Sequence[int]) -> None:
        """It was shown these; everything through a number was looked at."""

    def on_sought(self, look: int, session: int, subscription: int) -> None:
        """A client asks for a durable subscription that was confirmed to this session, by its name."""

    def on_found(self, look: int, session: int, is_there: bool) -> None:
        """It was told whether there is one of that name."""

    def on_range_read(self, holder: str, destination: int, start: int, stop: int, numbers: Ranges) -> None:
        """A client read what is stored in a range, after its hold had been confirmed under number `stop`."""

    def on_hold_said(self, holder: str) -> None:
        """A client wants to hold something under this name."""

    def on_hold_released(self, holder: str) -> None:
        """A client was told that the hold of this name is released."""

    def on_consumed(self, sequence: int, body: bytes) -> None:
        """A client that has a queue alone read a message there."""

    def at_quiet(self, facts: dict[int, int]) -> None:
        """Nothing is under way any more; `facts` is how many messages each queue holds, by the node."""


@dataclass(frozen=True, slots=True, order=True)
class PortConsumer:
    """One consumer of one connection."""

    connection: int
    session: int
    consumer: int


class Stand(NamedTuple):
    """As what a primary knows a consumer, as far as its client manager has heard."""

    key: int
    term: int
    stream: int


class Begun(NamedTuple):
    """A message that an application begins to work on, as it came to its consumer."""

    holder: PortConsumer
    channel: str
    subscription: int
    number: int
    redelivered: int
    # How the client manager stood when it said the last thing that the client heard.
    stand: Stand | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """How one node stands at the end of a run."""

    is_leading: bool
    applied: int
    # Of its state after `applied`.
    digest: bytes
    # How many envelopes were submitted in this life and are not confirmed.
    waits_for: int


_HOOKS = tuple(name for name in vars(Checker) if name.startswith(("on_", "at_")))


class Watch(Checker):
    """All checkers of a run behind the hooks of one."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        self.checkers = tuple(checkers)
        for hook in _HOOKS:
            interested = tuple(
                getattr(checker, hook)
                for checker in checkers
                if getattr(type(checker), hook) is not getattr(Checker, hook)
            )
            setattr(self, hook, _fan_out(interested))
        hearing = [one for one in self.checkers if type(one).on_sent is not Checker.on_sent]
        self.on_sent = _fan_out_by_kind(hearing)  # type: ignore[method-assign, assignment]


def _fan_out(hooks: tuple[Callable[..., None], ...]) -> Callable[..., None]:
    if len(hooks) == 1:
        return hooks[0]

    def tell(*seen: Any) -> None:
        for hook in hooks:
            hook(*seen)

    return tell


def _fan_out_by_kind(checkers: Sequence[Checker]) -> Callable[[int, BusMessage], None]:
    by_kind: dict[type[Any], tuple[Callable[[int, BusMessage], None], ...]] = {}

    def tell(node: int, message: BusMessage) -> None:
        kind = type(message)
        hooks = by_kind.get(kind)
        if hooks is None:
            hooks = tuple([one.on_sent for one in checkers if not one.hears or kind in one.hears])
            by_kind[kind] = hooks
        for hook in hooks:
            hook(node, message)

    return tell
