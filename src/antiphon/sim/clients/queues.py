"""Rude sessions with one destination: they publish, consume, or subscribe and consume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from antiphon.batch import Batch
from antiphon.ids import U64_MAX
from antiphon.ranges import Ranges
from antiphon.sim.clients.process import BATCH_BYTES_MAX, ClientProcess
from antiphon.sim.clients.rude import Account, ConsumerEnd, Delivered, RudeClient, RudeSession
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import (
    Acknowledge,
    CommandKind,
    ConfirmItem,
    OutcomeCode,
    Publish,
    Return,
    StartKind,
    Subscribe,
    Unsubscribe,
)
from antiphon.wire.frames import Failed, RangePage, RangeRead, ServerFrame, SubscriptionFind
from antiphon.wire.range_frames import RangeWanted, decode_page

_NO_SUBSCRIPTION = "subscription.unknown"
_SUBSCRIBED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.EXISTS)


class Publishing:
    """A share of bodies that no other client publishes, and when they are sent."""

    def __init__(self, client: ClientProcess, name: str, share: int) -> None:
        self.left = share
        self._client = client
        self._name = name
        self._bodies = 0

    def pause_ns(self) -> int:
        """How long the application waits until it publishes again."""
        return self._client.chance.randrange(self._client.habits.publish_pause_ns)

    def go_on(self, under_way: int, publish: Callable[[list[bytes]], None]) -> None:
        """Publish the next bodies, if no more than that is under way."""
        habits, chance = self._client.habits, self._client.chance
        if under_way < habits.window_commands:
            rows = min(self.left, chance.randint(1, habits.batch_rows_max))
            self.left -= rows
            room = min(habits.body_bytes_max, BATCH_BYTES_MAX // rows)
            publish([self._body(room) for _ in range(rows)])

    def _body(self, room: int) -> bytes:
        self._bodies += 1
        return f"{self._name}.{self._bodies}".encode().ljust(self._client.chance.randrange(room), b".")


class QueueSession(RudeSession):
    """A session with one destination; `settings` are those of a topic, which the session makes first."""

    def __init__(self, client: RudeClient, destination: str, settings: str = "") -> None:
        super().__init__(client, [Account(destination, settings)])
        self.account = self.accounts[0]

    def order_here(self, kind: CommandKind, payload: bytes, count: int = 1) -> int:
        """Send a new command to the channel of the destination."""
        return self.order(self.account.channel, kind, payload, count)

    @property
    def next_number(self) -> int:
        """The number of the next command."""
        return self.numbers_in(self.account.channel).next_number

    def is_drawn(self, likely: float) -> bool:
        """Does something happen that is so likely?"""
        return bool(likely) and self.chance.random() < likely


class RudeProducer(QueueSession):
    """Publishes a share of bodies, in batches, several under way; now and then it looks at what is stored."""

    def __init__(
        self, client: RudeClient, destination: str, share: int, settings: str = "", name: str = ""
    ) -> None:
        super().__init__(client, destination, settings)
        self._publishing = Publishing(client, name or client.name, share)

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self._publishing.left

    def start(self) -> None:
        if self.is_drawn(self.habits.look_probability):
            # Perhaps we come from another client manager, which confirmed what this one never heard of.
            # A client manager that was not told which channels know the session cannot know, before one of
            # its commands is confirmed there, how much it has been told elsewhere.
            self._look(is_heard=self.generation <= 1 or self.habits.names_channels)
        self._plan()

    def _plan(self) -> None:
        self.later(self._publishing.pause_ns(), self._go_on)

    def _go_on(self) -> None:
        if self._publishing.left:
            under_way = len(self.numbers_in(self.account.channel).unconfirmed)
            self._publishing.go_on(under_way, self._publish)
            self._plan()

    def _publish(self, bodies: list[bytes]) -> None:
        account, now_ms = self.account, self.world.now_ns // MILLISECOND_NS
        ruled = self.client.ruled(bodies, now_ms)
        if ruled is not None:
            batch = ruled.build(self.id, self.next_number)
        else:
            batch = Batch.of_bodies(bodies, self.id, self.next_number, now_ms)
        self.watch.on_published(self.id, self.next_number, bodies)
        wish = Publish(account.destination, account.settings_version, 0, batch.encode())
        self.order_here(CommandKind.PUBLISH, wish.encode(), len(bodies))

    def on_settled(self, item: ConfirmItem) -> None:
        if self.is_ready and self.is_drawn(self.habits.look_probability):
            self._look()

    def _look(self, *, is_heard: bool = True) -> None:
        """Ask for what is stored: everything that we know to be there must be shown."""
        account, page_bytes = self.account, self.chance.choice((1, 500, 1_000_000))
        request = self.ask(
            lambda request: RangeRead(
                request=request,
                channel=account.channel,
                start=1,
                stop=0,
                goal=0,
                page_bytes=page_bytes,
                ahead=1,
                allow_lost=True,
                live=True,
                destinations=(RangeWanted(account.destination),),
            ),
            lambda frame: self._on_page(self._key(request), frame),
        )
        self.watch.on_look(self._key(request), self.id, account.destination, 0 if is_heard else U64_MAX)

    def _key(self, request: int) -> int:
        return self.id << 32 | request

    def _on_page(self, key: int, frame: ServerFrame) -> None:
        if not isinstance(frame, RangePage):
            self.replace()
            return
        page = decode_page(frame.page)
        numbers: list[int] = []
        for piece in page.pieces:
            numbers += range(piece.first, piece.first + Batch.decode(piece.batch).count)
        self.watch.on_looked(key, page.through if page.ends else U64_MAX, numbers)


class RudeReader(QueueSession):
    """Takes messages with little or much credit, and acknowledges them after a while, in ranges."""

    def __init__(self, client: RudeClient, destination: str, settings: str = "") -> None:
        super().__init__(client, destination, settings)
        self.end = ConsumerEnd(self, self.account)
        self._to_acknowledge = Ranges()

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self.end.arrived and not self._to_acknowledge

    def start(self) -> None:
        self.end.open()
        self._plan_acknowledgement()
        if self.habits.asking_share:
            self._plan_asking()

    def stop(self) -> None:
        # Messages that the application held and had not acknowledged come again, to this client or another.
        self.end.clear()
        self._to_acknowledge = Ranges()

    def held_by(self, end: ConsumerEnd) -> Iterable[int]:
        return self._to_acknowledge.numbers()

    def on_arrived(self, end: ConsumerEnd, messages: Sequence[Delivered], *, was_empty: bool) -> None:
        self.client.looked_in_vain = 0
        if was_empty:
            self._plan_taking()

    def on_lost(self, end: ConsumerEnd, lost: Ranges) -> None:
        self._to_acknowledge.remove_all(lost)

    def _plan_taking(self) -> None:
        number = self.end.number
        self.later(self.chance.randrange(self.habits.take_pause_ns), lambda: self._take(number))

    def _take(self, number: int) -> None:
        end = self.end
        if end.number != number or not end.arrived:
            return
        for one in end.take(self.chance.randint(1, len(end.arrived))):
            self.watch.on_received(end.holder, one.sequence, one.body, one.redelivered)
            self._to_acknowledge.add(one.sequence, one.sequence + 1)
        if self.chance.random() < self.habits.reopen_probability:
            self.world.probe("client.consumer_closed")
            self._acknowledge()
            end.close(self._on_closed)
            return
        end.allow()
        if end.arrived:
            self._plan_taking()

    def _on_closed(self, frame: ServerFrame) -> None:
        if isinstance(frame, Failed):
            self.replace()
        else:
            self.end.open()

    def _plan_asking(self) -> None:
        client = self.client
        self.later(client.idle_pause_ns(client.asking, self.habits.take_pause_ns), self._ask)

    def _ask(self) -> None:
        """A consumer without a prefetch asks for the next message when the last is acknowledged."""
        end = self.end
        if end.is_asking and end.is_attached and not end.arrived and not self._to_acknowledge:
            end.ask()
        self._plan_asking()

    def _plan_acknowledgement(self) -> None:
        self.later(self.chance.randrange(self.habits.acknowledge_pause_ns), self._acknowledge_later)

    def _acknowledge_later(self) -> None:
        self._acknowledge()
        self._plan_acknowledgement()

    def _acknowledge(self) -> None:
        if not self._to_acknowledge:
            return
        ranges, self._to_acknowledge = self._to_acknowledge, Ranges()
        destination, subscription = self.account.destination, self.end.subscription
        if self.habits.reject_probability and self.chance.random() < self.habits.reject_probability:
            self.world.probe("client.rejected")
            bad = Return(
                destination=destination, subscription=subscription, counted=True, rejected=True, ranges=ranges
            )
            self.order_here(CommandKind.RETURN, bad.encode())
            return
        if self.chance.random() < self.habits.return_probability:
            self.world.probe("client.returned")
            back = Return(destination=destination, subscription=subscription, counted=True, ranges=ranges)
            self.order_here(CommandKind.RETURN, back.encode())
            return
        wish = Acknowledge(destination=destination, subscription=subscription, ranges=ranges)
        self.watch.on_acknowledged(self.id, self.next_number, subscription, ranges)
        self.order_here(CommandKind.ACK, wish.encode())


class RudeSubscriber(RudeReader):
    """Subscribes, consumes, and sometimes begins anew; a subscription that is not durable ends with it, or
    with the last that shares it."""

    def __init__(
        self,
        client: RudeClient,
        topic: str,
        settings: str,
        name: str,
        *,
        is_durable: bool | None = None,
        is_shared: bool = False,
    ) -> None:
        super().__init__(client, topic, settings)
        self._name = name
        self._is_durable = bool(name) if is_durable is None else is_durable
        self._is_shared = is_shared
        self._is_subscribing = False

    @property
    def is_idle(self) -> bool:
        return super().is_idle and self.end.subscription > 0

    def abandoned(self) -> None:
        self.end.subscription = 0
        self._is_subscribing = False

    def start(self) -> None:
        if self.end.subscription:
            super().start()
        elif not self._is_subscribing:
            self._subscribe()

    def _subscribe(self) -> None:
        wish = Subscribe(
            destination=self.account.destination,
            durable=self._is_durable,
            shared=self._is_shared,
            name=self._name,
            client_id="",
            start=StartKind.LATEST,
            number=0,
        )
        self._is_subscribing = True
        number = self.next_number

        def subscribed(item: ConfirmItem) -> None:
            self._is_subscribing = False
            if item.code not in _SUBSCRIBED:
                self.replace()
                return
            # Successes that follow each other are told as one.
            self.end.subscription = item.sequence + number - item.number
            if self._name and self.is_drawn(self.habits.look_probability):
                self._seek()
            if self.is_ready:
                super(RudeSubscriber, self).start()

        self.order(self.account.channel, CommandKind.SUBSCRIBE, wish.encode(), 1, subscribed)

    def _on_closed(self, frame: ServerFrame) -> None:
        if isinstance(frame, Failed) or self.chance.random() >= 0.3:
            super()._on_closed(frame)
            return
        self.world.probe("client.unsubscribed")
        end = Unsubscribe(subscription=self.end.subscription)
        self.order_here(CommandKind.UNSUBSCRIBE, end.encode())
        self.end.subscription = 0
        self._subscribe()

    def _seek(self) -> None:
        """Ask for the subscription that we know to be there."""
        session = self.id
        request = self.ask(
            lambda request: SubscriptionFind(
                request=request, session=session, name=self._name, durable=self._is_durable
            ),
            lambda frame: self.watch.on_found(
                request, session, not (isinstance(frame, Failed) and frame.code == _NO_SUBSCRIPTION)
            ),
        )
        self.watch.on_sought(request, session, self.end.subscription)

    def on_refused(self, end: ConsumerEnd, frame: Failed) -> None:
        if frame.code == "subscription.in_use":
            # Our own former connection, most likely.
            end.open_soon()
        else:
            super().on_refused(end, frame)
