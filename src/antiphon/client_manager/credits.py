"""Credits: the credit of consumers, sent to the primary until the primary has heard of it.

Where it sits
    consumers  ->  CREDITS  ->  the primary of the channel

What it promises
    CRD1  There is at most one `Credits` for each channel and step, with the credit at the end of the step.
    CRD2  Credit that the primary has not heard of is sent again, as it stands by then. Credit is absolute, so
          the order of two messages does not matter.
    CRD3  Credit is sent for attached consumers; until then their registration has it. A message that overtook
          the registration would be heard and lost.
    CRD4  While a consumer is attached, the primary is asked now and then whether it knows this node: a node
          that was taken for dead would wait for ever, and without an answer its streams are not sure
          (`streams`).

What it leaves to others
    `consumers` attaches, and acts when the primary does not know this node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sized
from typing import Final

from antiphon.bus.messages import ConsumerCredit, Credits, DeliverHead
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.session import Consumer, ConsumerState
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.client_manager.streams import Streams

_NS_PER_MS: Final = 1_000_000
_APART: Final = 16
"""So many messages within the time for which one of them holds are known one by one."""


class _Account:
    """The unsent and unheard credit of one channel."""

    __slots__ = (
        *(
            "changed",
            "check_at_ns",
            "is_settled",
            "number",
            "repeat_at_ns",
            "said",
            "settled_number",
            "words",
        ),
    )

    def __init__(self) -> None:
        # The number of the last message. The count goes on from term to term.
        self.number = 0
        self.begin()

    def begin(self) -> None:
        """A new primary hears everything with the registrations."""
        self.changed: dict[int, Consumer] = {}
        # Sent and not heard of: the consumer, and the number of the last message about it.
        self.said: dict[int, tuple[Consumer, int]] = {}
        self.repeat_at_ns: int | None = None
        self.check_at_ns: int | None = None
        # Numbers and times of the messages that the primary may still answer.
        self.words: deque[tuple[int, int]] = deque()
        # Is the primary to hear that all consumers are attached again, and in which message was that sent?
        self.is_settled = False
        self.settled_number = 0

    def heard(self, number: int) -> None:
        if self.said:
            self.said = {key: said for key, said in self.said.items() if said[1] > number}
        if self.settled_number and self.settled_number <= number:
            self.is_settled = False
            self.settled_number = 0
        if not self.said and not self.is_settled:
            self.repeat_at_ns = None

    def note(self, now_ns: int, apart_ns: int) -> None:
        """The last message is sent now. Those that follow soon need not be known one by one, and an answer to
        one that is too old makes nothing sure (`Streams.answered`): a primary may be away for hours."""
        while self.words and now_ns - self.words[0][1] >= 2 * _APART * apart_ns:
            self.words.popleft()
        if not self.words or now_ns - self.words[-1][1] >= apart_ns:
            self.words.append((self.number, now_ns))

    def said_at(self, number: int) -> int | None:
        """When a message was sent that is no later than this one; it is not asked for again."""
        said_ns = None
        while self.words and self.words[0][0] <= number:
            said_ns = self.words.popleft()[1]
        return said_ns

    def take(self) -> tuple[ConsumerCredit, ...]:
        """The credit to send now, under the next number.

        Everything unheard is in it: that the primary heard one message says nothing about earlier ones.
        """
        self.number += 1
        for key, (consumer, _) in self.said.items():
            self.changed.setdefault(key, consumer)
        items = []
        for key, consumer in self.changed.items():
            if consumer.state == ConsumerState.ATTACHED:
                items.append(ConsumerCredit(key, *consumer.credit_left, consumer.drains))
                self.said[key] = (consumer, self.number)
            else:
                self.said.pop(key, None)
        self.changed.clear()
        if self.is_settled:
            self.settled_number = self.number
        return tuple(items)


class CreditAccounts:
    def __init__(
        self,
        consumers: Mapping[str, Sized],
        settings: ClientManagerSettings,
        outbox: Outbox,
        streams: Streams,
        floors: Mapping[str, int],
    ) -> None:
        """`floors` are the highest numbers confirmed in each channel."""
        # Of each channel; here only to see whether there are any (CRD4).
        self._consumers = consumers
        self._outbox = outbox
        self._streams = streams
        self._floors = floors
        self._interval_ns = settings.request_interval_ms * _NS_PER_MS
        self._check_ns = settings.attachment_check_ms * _NS_PER_MS
        self._apart_ns = settings.sure_ms * _NS_PER_MS // _APART
        if settings.sure_ms:
            self._check_ns = min(self._check_ns, settings.sure_ms * _NS_PER_MS // 4)
        self._accounts = {channel: _Account() for channel in consumers}

    def changed(self, consumer: Consumer) -> None:
        """Send the consumer's credit at the end of this step (CRD1)."""
        if consumer.state == ConsumerState.ATTACHED:
            self._accounts[consumer.lane.channel].changed[consumer.key] = consumer

    def forget(self, consumer: Consumer) -> None:
        account = self._accounts[consumer.lane.channel]
        account.changed.pop(consumer.key, None)
        account.said.pop(consumer.key, None)

    def settled(self, channel: str) -> None:
        """All consumers of earlier terms are attached again: the primary need not wait for more."""
        self._accounts[channel].is_settled = True

    def new_term(self, channel: str) -> None:
        self._accounts[channel].begin()

    def ask(self, channel: str, *, is_anew: bool) -> None:
        """Ask at the end of this step whether the primary knows this node (CRD4); if `is_anew`, only that
        answer counts."""
        account = self._accounts[channel]
        account.check_at_ns = 0
        if is_anew:
            account.words.clear()

    def heard(self, channel: str, message: DeliverHead) -> int | None:
        """The primary has heard; returns when the last message that it answers for was sent, if that is
        news."""
        account = self._accounts[channel]
        account.heard(message.credits_heard)
        return account.said_at(message.sure)

    def next_deadline_ns(self) -> int | None:
        deadlines = [
            deadline
            for account in self._accounts.values()
            for deadline in (account.repeat_at_ns, account.check_at_ns)
            if deadline is not None
        ]
        return min(deadlines, default=None)

    def keep_time(self, now_ns: int) -> None:
        for channel, account in self._accounts.items():
            is_repeated = account.repeat_at_ns is not None and account.repeat_at_ns <= now_ns
            is_settling = account.is_settled and not account.settled_number
            if not self._consumers[channel] or not self._streams.stream(channel):
                account.check_at_ns = None
                if not self._consumers[channel]:
                    account.words.clear()
            elif account.check_at_ns is None:
                account.check_at_ns = now_ns + self._check_ns
            is_check = account.check_at_ns is not None and account.check_at_ns <= now_ns
            if account.changed or is_repeated or is_settling or is_check:
                self._say(channel, account, now_ns, is_repeated=is_repeated)

    def _say(self, channel: str, account: _Account, now_ns: int, *, is_repeated: bool) -> None:
        items = account.take()
        if self._apart_ns:
            account.note(now_ns, self._apart_ns)
        if is_repeated or account.repeat_at_ns is None:
            unheard = account.said or account.is_settled
            account.repeat_at_ns = now_ns + self._interval_ns if unheard else None
        if account.check_at_ns is not None:
            account.check_at_ns = now_ns + self._check_ns
        streams = self._streams
        said = Credits(
            streams.term(channel),
            account.number,
            items,
            streams.stream(channel),
            account.is_settled,
            self._floors[channel],
        )
        self._outbox.do(SendToPrimary(channel, said))
