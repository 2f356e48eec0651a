"""Resending: messages without a known outcome, sent again under their ids.

As long as their session is here they are sent again anyway, and only have to be waited for. When the session
or the connection is over, or another process had them, the session is adopted: resumed under a higher
generation, only to send the numbers in question. A channel that has them answers with their places; another
stores them now, unless an earlier message is missing too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

from antiphon.batch import BatchBuilder
from antiphon.client.aio.block import Duration, seconds
from antiphon.client.aio.link import ClientLink, Fate
from antiphon.client.core.outcomes import STORED, message_ids, publish_error
from antiphon.client.core.publication import Publication, Row
from antiphon.client.core.receipts import Receipt, Receipts, receipt_of
from antiphon.client.core.session import SessionCore
from antiphon.errors import AntiphonError, InvalidName, LocalError, PublishUncertain, SessionClosed, Timeout
from antiphon.ids import MessageId, parse_message_id
from antiphon.wire.commands import ConfirmItem, publish_buffers
from antiphon.wire.frames import Answer, DestinationOpened, SessionOpened
from antiphon.wire.primitives import Buffer


class Uncertain:
    """Publications of one session to one channel that have left, without a known outcome."""

    def __init__(
        self,
        link: ClientLink,
        core: SessionCore,
        channel: str,
        publications: Sequence[Publication],
        timeout_s: float,
    ) -> None:
        self._link = link
        self._core = core
        self._channel = channel
        self._publications = publications
        self._timeout_s = timeout_s

    def explain(self, error: PublishUncertain, place: int | None = None) -> PublishUncertain:
        """Let the application send them again: all of them, or the one message at `place` of the first."""
        error._again = partial(self._send_again, place)
        return error

    async def _send_again(self, place: int | None, timeout: Duration | None) -> Receipt | Receipts:
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        try:
            async with asyncio.timeout(timeout_s):
                for publication in self._publications:
                    await self._learn(publication)
        except TimeoutError:
            raise self._still_uncertain(
                Timeout(f"their outcome was not known within {timeout_s:g} s"), place
            ) from None
        except AntiphonError as error:
            raise self._still_uncertain(error, place) from error
        outcomes = [item for publication in self._publications for item in publication.outcomes or ()]
        return self._receipts(outcomes) if place is None else self._receipt(outcomes, place)

    async def _learn(self, publication: Publication) -> None:
        """Wait for the outcome; if none will come as things are, send the publication once more."""
        link = self._link
        if publication.outcomes is None and publication.command is None:
            told: asyncio.Future[None] = link.loop.create_future()
            publication.waiting.append(told)
            with link.waiting():
                await told
        if publication.outcomes is None:
            assert publication.command is not None, "what has no outcome and is not kept was never sent"
            ours = link if link.error is None else link.sibling()
            try:
                if ours is not link:
                    await ours.find()
                publication.outcomes = await repeat(
                    ours,
                    MessageId(self._core.session, self._channel, publication.first_number),
                    publication.count,
                    publication.command,
                    known=self._core.channels.get(self._channel, 0),
                    generation=self._core.generation,
                )
            finally:
                if ours is not link:
                    await ours.close()

    def _still_uncertain(self, error: AntiphonError, place: int | None) -> PublishUncertain:
        ids: list[str] = []
        for publication in self._publications:
            first, count = publication.first_number, publication.count
            if place is not None:
                first, count = first + place, 1
            ids += message_ids(self._core.session, self._channel, first, count)
        text = f"it may or may not be stored: {error}"
        return self.explain(PublishUncertain(text, message_ids=ids), place)

    def _receipts(self, outcomes: list[ConfirmItem]) -> Receipts:
        receipts = Receipts(self._core.session, self._channel)
        for item in outcomes:
            if item.code not in STORED:
                raise publish_error(item, self._core.session, self._channel)
            receipts._add_item(item)
        return receipts

    def _receipt(self, outcomes: list[ConfirmItem], place: int) -> Receipt:
        number = self._publications[0].first_number + place
        for item in outcomes:
            if item.number <= number < item.number + item.count:
                return _receipt(item, self._core.session, self._channel, number)
        raise AssertionError("a command was settled without one of its messages")


def _receipt(item: ConfirmItem, session: int, channel: str, number: int) -> Receipt:
    if item.code not in STORED:
        raise publish_error(item._replace(number=number, count=1), session, channel)
    return receipt_of(item, session, channel, number)


async def send_under_id(
    link: ClientLink, target: DestinationOpened, row: Row, message_id: str, timeout_s: float
) -> Receipt:
    """Send a message under the id that it was sent with before, perhaps by another process."""
    id, channel = parse_message_id(message_id), target.channel
    if not id.number:
        raise InvalidName(f"{message_id} is not the id of a message: they are numbered from 1")
    if id.channel != channel:
        raise LocalError(
            f"{message_id} was sent to channel {id.channel!r}; this destination is in {channel!r}"
        )
    known = link.core.sessions.get(id.session)
    if known is not None and not known.is_adopted:
        raise LocalError(f"the session of {message_id} is open here; send it again with error.resend()")
    builder = BatchBuilder()
    row._add_to(builder, link.wall_ms())
    batch = builder.build(id.session, id.number)
    command = publish_buffers(
        id.session, 1, id.number, 0, target.destination, target.settings_version, batch.buffers(), batch.count
    )
    try:
        async with asyncio.timeout(timeout_s):
            (item,) = await repeat(link, id, 1, command)
    except TimeoutError:
        text = f"it may or may not be stored: its outcome was not known within {timeout_s:g} s"
        raise PublishUncertain(text, message_ids=[message_id]) from None
    except SessionClosed as error:
        raise PublishUncertain(f"it may or may not be stored: {error}", message_ids=[message_id]) from error
    return _receipt(item, id.session, channel, id.number)


async def repeat(
    link: ClientLink, id: MessageId, count: int, command: list[Buffer], *, known: int = 0, generation: int = 0
) -> list[ConfirmItem]:
    """Send a publish command of an adopted session; its outcomes.

    Its channel has `known` the session under that generation, and `generation` was the last under which it
    was sent.
    """
    session = await _adopt(link, id.session, id.channel, known, generation)
    fate = Fate(link.loop)
    session.outbox(id.channel).repeat(id.number, count, command, fate)
    link.flush_soon()
    with link.waiting():
        return await fate.outcomes


async def _adopt(link: ClientLink, session: int, channel: str, before: int, last: int) -> SessionCore:
    question = {"question": "session", "session": f"{session:032x}", "channel": channel}
    answer = await link.call(link.core.ask(question), Answer, None)
    known = json.loads(answer.answer)
    if not isinstance(known, dict) or not isinstance(known.get("generation"), int):
        raise SessionClosed("the session that sent it has expired, or was closed")
    # The answering replica may lag behind; the channel decides whether it is still the same session.
    generation = max(known["generation"], last) + 1
    link.core.forget_adopted(session)
    request = link.core.adopt_session(session, generation, channel, known=before)
    await link.call(request, SessionOpened, None)
    return link.core.sessions[session]
