"""A session that has something in several channels, and commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.client_manager.effects import Effect, SubmitEnvelope
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    CommandHeader,
    CommandKind,
    Outcome,
    OutcomeCode,
    Payload,
    decode_payload,
    iterate_commands,
)
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import (
    Consumed,
    FinishTransaction,
)
from tests.unit.client_manager.stage import KNOWN, Stage, publish_bytes

COMMITTED, ROLLED_BACK = TransactionFate.COMMITTED, TransactionFate.ROLLED_BACK
NO = Outcome(0, 1, OutcomeCode.TX_ROLLED_BACK, 0, "not whole")
HOME, OTHER, THIRD = "a", "b", "c"


class Deal(Stage):
    """A session with something in every channel, and what is ordered of it in each."""

    def __init__(self, channels: Sequence[str] = (HOME, OTHER), **more: Any) -> None:
        super().__init__(channels, **more)
        self.connect()
        self.session = self.open_session()
        for channel in channels:
            self.say(1, frames.Command(channel=channel, command=publish_bytes(self.session)))
        self.confirm_all()
        self.effects.clear()

    def waiting(self, channel: str) -> list[Payload]:
        """What was submitted to a channel and is not confirmed."""
        return [payload for _, payload in self._ordered(channel)]

    def kinds(self, channel: str) -> list[CommandKind]:
        return [CommandKind(header.kind) for header, _ in self._ordered(channel)]

    def header(self, channel: str) -> CommandHeader:
        ((header, _),) = self._ordered(channel)
        return header

    def _ordered(self, channel: str) -> Iterator[tuple[CommandHeader, Payload]]:
        for envelope in self.submitted:
            if envelope.channel == channel:
                for header, payload, _ in iterate_commands(envelope.payload):
                    yield header, decode_payload(header.kind, payload)

    def settle(self, channel: str, *exceptions: Outcome) -> list[Effect]:
        """The oldest envelope of this channel is applied."""
        at = next(at for at, envelope in enumerate(self.submitted) if envelope.channel == channel)
        self.submitted.insert(0, self.submitted.pop(at))
        return self.confirm(*exceptions)

    def parts(self, messages: int = 2) -> tuple[TransactionPart, ...]:
        consumed = (Consumed(KNOWN, 0, Ranges([(10, 12)])),)
        return (TransactionPart(OTHER, 1, messages, consumed), TransactionPart(HOME, 3, 4, consumed))

    def commit(
        self,
        transaction: int = 1,
        parts: tuple[TransactionPart, ...] | None = None,
        conn: int = 1,
        session: int = 0,
        **more: Any,
    ) -> int:
        request = self.request()
        self.say(
            conn,
            frames.TransactionCommit(
                request=request,
                session=session or self.session,
                transaction=transaction,
                parts=self.parts() if parts is None else parts,
                **more,
            ),
        )
        return request

    def ask(self, home: str = HOME, transaction: int = 1, conn: int = 1) -> int:
        request = self.request()
        self.say(
            conn,
            frames.TransactionAsk(request=request, session=self.session, transaction=transaction, home=home),
        )
        return request

    def resume(self, conn: int = 2) -> None:
        """The client comes back with a higher generation, on another connection to this node."""
        self.connect(conn)
        self.open_session(conn, self.session, 2)

    def come_back_and_ask(self) -> int:
        """The client loses its connection, comes back, and asks what became of its transaction."""
        self.lose()
        self.resume()
        return self.ask(conn=2)

    def answers(self, conn: int = 1) -> list[tuple[int, TransactionFate, str]]:
        return [
            (each.request, each.fate, each.text) for each in self.heard_of(frames.TransactionDecided, conn)
        ]

    def is_idle(self) -> bool:
        """Is nothing kept of any transaction, and nothing waited for?"""
        coordination = self.manager._coordination
        return (
            len(coordination) == 0
            and not coordination._busy
            and not coordination._unfinished
            and coordination.next_deadline_ns() is None
            and not self.submitted
            and self.manager._ordering._unconfirmed_bytes == 0
        )


def finish(session: int, *, commits: bool, messages: int, transaction: int = 1) -> FinishTransaction:
    return FinishTransaction(session=session, transaction=transaction, commits=commits, messages=messages)


def reason_of(deal: Deal) -> str:
    assert deal.goodbye().code == ProtocolError.code
    return deal.goodbye().text


def kinds_in(envelope: SubmitEnvelope) -> list[CommandKind]:
    return [CommandKind(header.kind) for header, _, _ in iterate_commands(envelope.payload)]
