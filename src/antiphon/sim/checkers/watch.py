"""Watch: what checkers can see, and the fan-out from the drivers to all of them.

The node runner tells what a node does, the workload tells what clients saw. A checker overrides
the hooks it needs; the others cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from antiphon.bus.messages import BusMessage, Entry
from antiphon.ranges import Ranges
from antiphon.sim.image import Image, Record
from antiphon.sim.world import Violation, World


class Checker:
    """One promise, watched."""

    promise = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, text: str) -> NoReturn:
        """The promise was broken."""
        raise Violation(f"{self.promise}: {text}")

    # What a node does.

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        """A life of a node began with what it found on its disk, and with this checkpoint or 0."""

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

    # What crosses the client port of the node, at the moment it leaves or enters the node.

    def on_handed_out(self, node: int, holder: Holder, sequence: int, count: int, redelivered: int) -> None:
        """Messages with consecutive numbers left the node for a consumer."""

    def on_holder_gone(self, node: int, holder: Holder) -> None:
        """The node learned that a consumer is no more; what it held may go to others."""

    def on_kept(self, node: int, holder: Holder, numbers: Ranges) -> None:
        """The node let a consumer that came back keep these."""

    def on_confirm_left(self, node: int, session: int, number: int, count: int, code: int, at: int) -> None:
        """The node told a client what became of its commands."""

    # What clients do and see.

    def on_published(self, session: int, number: int, bodies: Sequence[bytes]) -> None:
        """A client handed messages to its connection for the first time."""

    def on_acknowledged(self, session: int, number: int, ranges: Ranges) -> None:
        """A client handed an acknowledgement to its connection for the first time."""

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        """A client learned what became of its commands."""

    def on_received(self, holder: Holder, sequence: int, body: bytes, redelivered: int) -> None:
        """A message reached an application."""

    def at_quiet(self, facts: dict[int, int]) -> None:
        """Nothing is under way any more; `facts` is how many messages each queue holds, by the node."""


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """One consumer of one connection."""

    connection: int
    session: int
    consumer: int


_HOOKS = tuple(name for name in vars(Checker) if name.startswith(("on_", "at_")))


class Watch:
    """All checkers of a run behind the hooks of one."""

    on_started: Callable[[int, Image, int], None]
    on_crashed: Callable[[int], None]
    on_sent: Callable[[int, BusMessage], None]
    on_appended: Callable[[int, int, Record], None]
    on_durable: Callable[[int, int], None]
    on_applied: Callable[[int, Entry, memoryview | None], None]
    on_handed_out: Callable[[int, Holder, int, int, int], None]
    on_holder_gone: Callable[[int, Holder], None]
    on_kept: Callable[[int, Holder, Ranges], None]
    on_confirm_left: Callable[[int, int, int, int, int, int], None]
    on_published: Callable[[int, int, Sequence[bytes]], None]
    on_acknowledged: Callable[[int, int, Ranges], None]
    on_confirmed: Callable[[int, int, int, int, int], None]
    on_received: Callable[[Holder, int, bytes, int], None]
    at_quiet: Callable[[dict[int, int]], None]

    def __init__(self, checkers: Sequence[Checker]) -> None:
        self.checkers = tuple(checkers)
        for hook in _HOOKS:
            interested = tuple(
                getattr(checker, hook)
                for checker in checkers
                if getattr(type(checker), hook) is not getattr(Checker, hook)
            )
            setattr(self, hook, _fan_out(interested))


def _fan_out(hooks: tuple[Callable[..., None], ...]) -> Callable[..., None]:
    if len(hooks) == 1:
        return hooks[0]

    def tell(*seen: Any) -> None:
        for hook in hooks:
            hook(*seen)

    return tell
