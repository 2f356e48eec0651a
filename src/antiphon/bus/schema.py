"""Schema: the declaration of a class of bus messages.

    @declare(3, to=SEQUENCER, lane=TO_ONE, is_vote=True)
    @dataclass(frozen=True, slots=True)
    class DataReport(BusMessage):
        epoch_hint: U64
        items: ReportItems

The number and the annotations are its bytes, `to` are the machines that listen to it, `lane` the way it goes.
The codec, the routes of a node and of a replica, and the lanes of the network are derived from this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn, TypeVar

from antiphon.wire.lanes import Lane
from antiphon.wire.layout import Field, Layout


class Machine(Enum):
    """The listeners of messages. The first ones, down to PRESENCE, are the roles of a replica."""

    MEMBER = "member"
    DATA_SERVER = "data server"
    SEQUENCER = "sequencer"
    COMMIT_SERVER = "commit server"
    VOTER = "commit server with a vote"
    LEARNER = "commit server without a vote"
    CHECKPOINT_SERVER = "checkpoint server"
    HOLDER = "holder"
    JOINER = "joiner"
    PRESENCE = "presence"
    PRODUCER = "producer"
    LISTENER = "listener"
    MESSAGE_MANAGER = "message manager"
    CLIENT_MANAGER = "client manager"
    NODE = "node"


TO_ONE: Final = None
"""The lane of a message that always goes to a single node."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Kind:
    """The declaration of a class of messages."""

    number: int
    message: type[Any]
    format: Layout[Any] | Field[Any]
    listeners: frozenset[Machine]
    """Machines that hear every message of this kind."""
    sometimes: frozenset[Machine]
    """Machines that hear some of them; the replica knows which."""
    lane: Lane | None
    is_late: bool
    """Client managers wait for it, and replicas do not: they may hear it with the next message to them."""
    is_periodic: bool
    """A node sends such messages at intervals, and the next one makes up for a lost one."""
    is_vote: bool
    """It counts for something, and so only from the disk that the configuration lists."""


KINDS: Final[dict[type[Any], Kind]] = {}
"""Every class of messages, in the order of `messages.py`."""


def declare(
    number: int,
    *,
    to: Machine | tuple[Machine, ...],
    lane: Lane | None,
    sometimes: tuple[Machine, ...] = (),
    is_late: bool = False,
    is_periodic: bool = False,
    is_vote: bool = False,
    by_hand: Field[Any] | None = None,
) -> Callable[[type[M]], type[M]]:
    """Declare number, listeners and lane of a class of messages; its annotations are its format, unless that
    is written `by_hand`. Numbers are never used twice, also not those of messages that are gone.
    """
    listeners = frozenset(to if isinstance(to, tuple) else (to,))

    def register(message: type[M]) -> type[M]:
        assert all(kind.number != number for kind in KINDS.values()), f"{number} is taken"
        assert listeners, f"nobody listens to {message.__name__}"
        KINDS[message] = Kind(
            number=number,
            message=message,
            format=by_hand or Layout(message),
            listeners=listeners,
            sometimes=frozenset(sometimes),
            lane=lane,
            is_late=is_late,
            is_periodic=is_periodic,
            is_vote=is_vote,
        )
        return message

    return register


def heard_by(*machines: Machine) -> frozenset[type[Any]]:
    """The messages that one of these machines listens to, always or sometimes."""
    wanted = frozenset(machines)
    return frozenset([kind.message for kind in KINDS.values() if wanted & (kind.listeners | kind.sometimes)])


def not_for(machine: Machine, message: object) -> NoReturn:
    """The end of a machine's list of messages, for one that it does not listen to."""
    raise AssertionError(f"{type(message).__name__} is not for the {machine.value}")
