"""The client's short cuts for a message that travels alone, against the way of all other messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.client.core.client import ClientCore
from antiphon.client.core.events import Settled
from antiphon.client.core.publication import Publication
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import Acknowledge, ConfirmItem, OutcomeCode
from antiphon.wire.frames import Confirm
from tests.unit.client.core.test_client import SESSION, chunk, open_session, payload_of, welcome_core

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 2)


class Waiter:
    def __init__(self, is_done: bool) -> None:
        self._is_done = is_done

    def done(self) -> bool:
        return self._is_done


@given(
    st.binary(max_size=40),
    st.tuples(st.integers(1, (1 << 128) - 1), U32, st.integers(1, (1 << 64) - 2), U64),
    st.tuples(U64, U32, st.integers(0, (1 << 62))),
    st.booleans(),
)
def test_a_lone_message_leaves_as_it_would_with_others(
    body: bytes, numbers: tuple[int, int, int, int], head: tuple[int, int, int], is_given_up: bool
) -> None:
    destination, settings_version, timestamp_ms = head

    def publication() -> Publication:
        return Publication(
            [body],
            10,
            Waiter(is_given_up),
            destination=destination,
            settings_version=settings_version,
            timestamp_ms=timestamp_ms,
            deadline_ns=0,
        )

    alone, together = publication().leave(*numbers), publication()._leave_together(*numbers)
    if alone is None or together is None:
        assert alone is together is None and is_given_up
    else:
        assert b"".join(alone.buffers) == b"".join(together.buffers)
        assert (alone.count, alone.size) == (together.count, together.size)


# What the application sends: a publication of so many messages, or an acknowledgement (0).
SENT = st.lists(st.integers(0, 3), min_size=1, max_size=6)
# What the server confirms: the oldest command as a whole, or anything.
CONFIRMED = st.lists(
    st.none()
    | st.tuples(
        st.integers(0, 12),
        st.integers(1, 4),
        st.sampled_from([OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.NO_DESTINATION]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["", "because"]),
    ),
    max_size=12,
)


@given(SENT, st.integers(1, 2_000), CONFIRMED)
def test_a_lone_confirmation_counts_as_any_other(
    sent: list[int], window_bytes: int, confirmed: list[tuple[int, int, int, str, str] | None]
) -> None:
    """Two clients in the same state hear the same: one takes the short cut wherever it may."""
    cores = welcome_core(), welcome_core()
    publications: list[list[Publication]] = [[], []]
    for core, published in zip(cores, publications, strict=True):
        session = open_session(core)
        session.window_bytes = window_bytes
        session.outbox("a").window_bytes = window_bytes
        for count in sent:
            if count:
                published.append(chunk(*[b"x"] * count))
                session.submit("a", published[-1])
            else:
                session.outbox("a").acknowledge(
                    Acknowledge(destination=3, subscription=0, ranges=Ranges([(1, 2)])), None
                )
    for item in confirmed:
        number, count, code, channel, text = item or oldest(cores[1])
        frame = Confirm(session=SESSION, channel=channel, items=(ConfirmItem(number, count, code, 40, text),))
        quick, slow = (
            hear(core, frame, short_cut=short_cut)
            for core, short_cut in zip(cores, (True, False), strict=True)
        )
        tags = [
            [(published.index(tag) if isinstance(tag, Publication) else tag, o) for tag, o in heard]
            if heard is not None
            else None
            for heard, published in zip((quick, slow), publications, strict=True)
        ]
        assert tags[0] == tags[1]
        if quick is None:
            return
        assert told(cores[0]) == told(cores[1])
        assert [(p.is_settled, p.outcomes, p.first_number) for p in publications[0]] == [
            (p.is_settled, p.outcomes, p.first_number) for p in publications[1]
        ]


def oldest(core: ClientCore) -> tuple[int, int, int, str, str]:
    """What the server says when it has stored the command that was sent first."""
    outbox = core.sessions[SESSION].outbox("a")
    count = outbox._unconfirmed[0].count if outbox._unconfirmed else 1
    return outbox.confirmed_through + 1, count, OutcomeCode.APPLIED, "a", ""


def hear(core: ClientCore, frame: Confirm, *, short_cut: bool) -> list[Any] | None:
    """The commands that are settled by this, with their outcomes; None if the server broke the protocol."""
    if short_cut and (publication := core.settle_lone(payload_of(frame))) is not None:
        return [(publication, publication.outcomes)]
    try:
        events = core.receive(0, frame)
    except ProtocolError:
        return None
    return [(event.tag, event.outcomes) for event in events if isinstance(event, Settled)]


def told(core: ClientCore) -> tuple[bytes, int, int, bool]:
    """What the client says to the server next, and how far it is."""
    outbox = core.sessions[SESSION].outbox("a")
    return b"".join(core.take_output()), outbox.confirmed_through, outbox.room, outbox.is_idle
