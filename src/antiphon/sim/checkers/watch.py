"""Watch: the hooks of checkers, and the fan-out from the drivers to all checkers.

The node runner calls the hooks of nodes, the workload those of clients. A checker overrides the hooks it
needs; the others cost nothing. A checker with `hears` is called for those kinds of message only.
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
    """Watches one promise."""

    promise = ""
    # The kinds of message for `on_sent`; none means all.
    hears: tuple[type[Any], ...] = ()

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, text: str) -> NoReturn:
        raise Violation(f"{self.promise}: {text}")

    # Nodes.

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        """A life of a node began with this image of its disk, and with this checkpoint or 0."""

    def on_opened(self, node: int, disk_id: bytes, aside: int) -> None:
        """A life of a node begins with this disk, which has so many files in `lost+found`."""

    def on_refused(self, node: int, is_changed: bool) -> None:
        """A node refused to start; was anything on its disk changed meanwhile?"""

    def on_crashed(self, node: int) -> None:
        """A life of a node ended: everything that was not on its disk is gone."""

    def on_sent(self, node: int, message: BusMessage) -> None:
        """A machine of the node emitted a message, to its own node or another."""

    def on_appended(self, node: int, index: int, record: Record) -> None:
        """The node wrote a record, which is not durable yet."""

    def on_durable(self, node: int, index: int) -> None:
        """The disk has finished a sync that began after this record was written."""

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        """The member of the node handed an entry to its message manager."""

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        """The message manager of the node has applied the entry; `state` is its state now."""

    def on_proposed(self, node: int, now_ns: int, wall_ms: int, command: bytes) -> None:
        """The primary wants a command of its own ordered; its clocks show these times."""

    def on_flushed(self, node: int) -> None:
        """The message manager of the node has emitted everything it had to, for now."""

    def on_restored(self, node: int, n: int) -> None:
        """A node took over the state after number n from another, in the middle of a life."""

    def on_discarded(self, node: int, mid: Mid) -> None:
        """A data server gave up an envelope."""

    def on_released(self, node: int, base: int) -> None:
        """A node gave up records that only numbers up to `base` needed."""

    def on_files(self, node: int, disk: MemoryDisk, disk_id: bytes) -> None:
        """Files of the disk have come, gone, or are used again; or a life begins with them."""

    def on_status(self, node: int, status: ServerStatus) -> None:
        """The commit server of a node learned the status of its disk; a life begins with OK."""

    # The disk of a node that is down. The next life need not find what was there.

    def on_damaged(self, node: int) -> None:
        """Some bytes of the disk are not readable any more, or are changed."""

    def on_replaced(self, node: int) -> None:
        """The node has another, empty disk."""

    # Producers of a node. No two envelopes of a run are alike.

    def on_submitted(self, node: int, tag: int, payload: bytes) -> None:
        """A part of the node wants an envelope ordered."""

    def on_envelope_confirmed(self, node: int, tag: int, first: int, count: int) -> None:
        """A part of the node learned that its envelope is committed and applied, and where."""

    def on_envelope_uncertain(self, node: int, tag: int) -> None:
        """A part of the node orders an envelope once more, because the first outcome is unknown."""

    def at_end(self, facts: dict[int, NodeFacts]) -> None:
        """Nothing has failed for a while; `facts` are those of every node that is up."""

    # Client ports of a node, at the moment a frame leaves or enters the node.

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        """Messages with consecutive numbers left the node for a consumer."""

    def on_credit(self, node: int, holder: PortConsumer, through: int, sent: int | None) -> None:
        """The node heard that a consumer may be sent messages through this one; a new consumer has been
        `sent` some before."""

    def on_sent_through(self, node: int, holder: PortConsumer, delivery: int) -> None:
        """Messages left the node for a consumer, up to this delivery number."""

    def on_drained(self, node: int, holder: PortConsumer) -> None:
        """The node told a client that a consumer has all messages there were, and no credit any more."""

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        """The node learned that a consumer is gone; others may get its messages."""

    def on_attached(self, node: int, session: int, generation: int) -> None:
        """The node told a client that it has its session, under this generation."""

    def on_left(self, node: int, session: int, generation: int) -> None:
        """The node learned that this client is gone, or does not have the session any more."""

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        """The node heard a client's return of these messages, which is still to be ordered."""

    def on_kept(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        """The node let a consumer that came back keep these messages."""

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        """The node told a client that a consumer has lost these messages."""

    def on_confirm_left(self, node: int, session: int, number: int, count: int, code: int, at: int) -> None:
        """The node told a client the outcome of its commands."""

    # Clients.

    def on_published(self, session: int, number: int, bodies: Sequence[bytes]) -> None:
        """A client handed messages to its connection for the first time."""

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        """A client handed an acknowledgement to its connection for the first time; subscription 0 for a
        queue."""

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        """A client learned the outcome of its commands."""

    def on_received(self, holder: PortConsumer, sequence: int, body: bytes, redelivered: int) -> None:
        """A message reached an application."""

    def on_given(self, channel: str, subscription: int, number: int, redelivered: int) -> None:
        """A client library handed a message to its application."""

    def on_begun(self, begun: Begun) -> None:
        """An application begins to work on a message."""

    def on_has(self, holder: PortConsumer, channel: str, numbers: Sequence[int]) -> None:
        """A message came to a consumer: all copies it has neither acknowledged nor given back."""

    def on_look(self, look: int, session: int, destination: int, after: int) -> None:
        """A client with this session asks for a page of the messages behind a number."""

    def on_looked(self, look: int, through: int, numbers: Sequence[int]) -> None:
        """The client was shown these numbers; the page goes through `through`."""

    def on_sought(self, look: int, session: int, subscription: int) -> None:
        """A client asks, by name, for a durable subscription that was confirmed to this session."""

    def on_found(self, look: int, session: int, is_there: bool) -> None:
        """The client was told whether there is a subscription of that name."""

    def on_range_read(self, holder: str, destination: int, start: int, stop: int, numbers: Ranges) -> None:
        """A client read a stored range, after its hold had been confirmed under number `stop`."""

    def on_hold_said(self, holder: str) -> None:
        """A client asks for a hold of this name."""

    def on_hold_released(self, holder: str) -> None:
        """A client was told that the hold of this name is released."""

    def on_consumed(self, sequence: int, body: bytes) -> None:
        """A client with a queue of its own read a message there."""

    def at_quiet(self, facts: dict[int, int]) -> None:
        """Nothing is under way any more; `facts` are the counts of messages in queues, by the node."""


@dataclass(frozen=True, slots=True, order=True)
class PortConsumer:
    connection: int
    session: int
    consumer: int


class Stand(NamedTuple):
    """A consumer as its primary knows it, as far as its client manager has heard."""

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
    # The client manager's standing when it sent the last frame that the client received.
    stand: Stand | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The standing of one node at the end of a run."""

    is_leading: bool
    applied: int
    # Of the state after `applied`.
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
