"""Teller: a client process with one session that has to do with several channels.

Like `SimClient` it is written as plainly as the protocol allows. In each channel its session has numbers of
its own (`Lane`). When a connection is lost it goes to another client manager; there it resumes its session,
and sends again what has no outcome, or it begins a new one and never learns what became of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.batch import Batch
from antiphon.sim.checkers.bank import Bank, Money
from antiphon.sim.workloads.process import ClientHabits, Hall
from antiphon.sim.workloads.speaker import Kept, Numbers, Settled, Speaker
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, OutcomeCode
from antiphon.wire.frames import (
    AckMode,
    Browse,
    Browsed,
    Command,
    Confirm,
    ConsumerGone,
    ConsumerLost,
    Deliver,
    DestinationCreate,
    DestinationOpened,
    Failed,
    Goodbye,
    Ping,
    ServerFrame,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    Welcome,
)
from antiphon.wire.transactions import TRANSACTED_NUMBER

AGAIN_NS = 20 * MILLISECOND_NS

_USELESS = (OutcomeCode.STALE, OutcomeCode.GAP, OutcomeCode.SESSION_UNKNOWN, OutcomeCode.FORGOTTEN)
"""After one of these the session is of no more use."""

Answer = Callable[[ServerFrame], None]


@dataclass(slots=True, kw_only=True)
class TellerHabits:
    """How those who move money behave; drawn once per run."""

    transfers: int = 10
    pause_ns: int = 20 * MILLISECOND_NS
    # Between the sends of one transaction.
    send_pause_ns: int = 2 * MILLISECOND_NS
    messages_max: int = 3
    rollback_probability: float = 0.15
    # The process dies when it has sent everything, or has just wished to commit.
    death_probability: float = 0.0
    # Of transactions that were open when the connection was lost: how many go on all the same.
    go_on_probability: float = 0.5
    # How often consumers come back with what they hold.
    keep_probability: float = 0.5
    look_probability: float = 0.1
    drop_probability: float = 0.1
    # Takes money out, and sends none.
    is_closing: bool = False


class Lane(Numbers):
    """Those of a teller in one channel."""

    def __init__(self) -> None:
        super().__init__()
        # Rows that were sent in transactions, or staged.
        self.rows = 0


@dataclass(slots=True)
class Account:
    """A queue, as soon as it was found."""

    name: str
    channel: str
    destination: int = 0
    settings_version: int = 0


@dataclass(slots=True)
class Branch:
    """Where tellers work."""

    hall: Hall
    habits: ClientHabits
    manners: TellerHabits
    bank: Bank
    accounts: Sequence[Account]


class Teller(Speaker[Answer]):
    """One client process with one session, in all channels."""

    ack_mode = AckMode.TRANSACTED

    def __init__(self, name: str, branch: Branch) -> None:
        super().__init__(name, branch.hall, branch.habits)
        self.manners = branch.manners
        self.bank = branch.bank
        self.accounts = [Account(one.name, one.channel) for one in branch.accounts]
        self.session = 0
        self.generation = 0
        self.lanes: dict[str, Lane] = {}
        self.is_ready = False
        self._bodies = 0

    # For the kinds of teller.

    @property
    def names_channels(self) -> bool:
        """Must a client manager that it comes to know at once where its session has something?"""
        return False

    def start(self) -> None:
        """The session is there, and every account was found."""
        raise NotImplementedError

    def stop(self) -> None:
        """The connection is gone."""

    def resumed(self) -> None:
        """The session goes on, on another connection; what has no outcome was sent again."""

    def abandoned(self) -> None:
        """The session is over, whatever of it was under way."""

    def on_deliver(self, frame: Deliver) -> None:
        """Messages arrived."""

    def on_consumer_lost(self, frame: ConsumerLost) -> None:
        """Others have got some of what came."""

    def on_gone(self, frame: ConsumerGone) -> None:
        """The node closed a consumer."""

    # Living and dying.

    @property
    def has_unconfirmed(self) -> bool:
        """Does any command wait for its outcome?"""
        return any(lane.unconfirmed for lane in self.lanes.values())

    def pause(self) -> None:
        self.is_ready = False
        self.stop()

    def forget(self) -> None:
        if self.has_unconfirmed:
            self.world.probe("client.left_uncertain")
        self.session = self.generation = 0
        self.lanes.clear()
        self.is_ready = False
        self.abandoned()

    def later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something after a while, unless connection or session are gone by then."""
        life, session = self.life, self.session

        def act() -> None:
            if (self.life, self.session) == (life, session) and self.is_ready:
                action()

        self.world.after(delay_ns, act)

    # Talking.

    def on_frame(self, frame: ServerFrame) -> None:
        match frame:
            case Welcome():
                self._open_session()
            case Confirm():
                self._on_confirm(frame)
            case Deliver():
                if frame.session == self.session:
                    self.on_deliver(frame)
            case ConsumerLost():
                if frame.session == self.session:
                    self.on_consumer_lost(frame)
            case ConsumerGone():
                if frame.session == self.session:
                    self.on_gone(frame)
            case SessionGone():
                if frame.session == self.session:
                    # One of its channels does not know it any more, and said so after another had resumed it.
                    self.world.probe("client.session_gone")
                    self._begin_anew()
            case Ping() | Goodbye():
                super().on_frame(frame)
            case _:
                self._on_answer(frame)

    def _on_answer(self, frame: ServerFrame) -> None:
        if isinstance(frame, Failed):
            self.world.probe(f"client.failed.{frame.code}")
        request = getattr(frame, "request", None)
        answer = self._requests.pop(request, None) if request is not None else None
        if answer is not None:
            answer(frame)

    # The session.

    def _open_session(self) -> None:
        if self.session and self.chance.random() < self.habits.resume_probability:
            self.generation += 1
        else:
            self.forget()
        is_named = self.session and (self.habits.names_channels or self.names_channels)
        self.say(
            SessionOpen(
                request=self.next_request(self._on_session_opened),
                session=self.session,
                generation=self.generation,
                ack_mode=self.ack_mode,
                channels=tuple(self.lanes) if is_named else (),
            )
        )

    def _on_session_opened(self, frame: ServerFrame) -> None:
        if not isinstance(frame, SessionOpened):
            self.forget()
            self._open_session()
            return
        is_resumed = bool(self.session)
        self.session, self.generation = frame.session, frame.generation
        if is_resumed:
            self.world.probe("client.session_resumed")
            self._resend()
            self.resumed()
        self._find_accounts()

    def _resend(self) -> None:
        """Everything without an outcome once more, in order, under the same numbers."""
        for channel, lane in self.lanes.items():
            for number in lane.unconfirmed:
                self.world.probe("client.command_resent")
                self._order(channel, number)

    def replace_session(self) -> None:
        """The session is of no more use: close it and begin another on the same connection."""
        self.world.probe("client.session_replaced")
        self.say(SessionClose(request=self.next_request(None), session=self.session))
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.stop()
        self.forget()
        # Answers to what the old session had asked for concern nobody any more.
        self._requests = dict.fromkeys(self._requests)
        self._open_session()

    # Accounts.

    def _find_accounts(self) -> None:
        """One after the other; those that were found before have not moved."""
        account = next((one for one in self.accounts if not one.destination), None)
        if account is None:
            self.is_ready = True
            self.start()
            return
        wish = f'{{"channel": "{account.channel}"}}'
        request = self.next_request(lambda frame: self._on_account(account, frame))
        self.say(DestinationCreate(request=request, name=f"queue:{account.name}", settings=wish))

    def _on_account(self, account: Account, frame: ServerFrame) -> None:
        if isinstance(frame, DestinationOpened):
            account.destination, account.settings_version = frame.destination, frame.settings_version
            self._find_accounts()
            return
        life = self.life

        def again() -> None:
            if self.life == life:
                self._find_accounts()

        self.world.after(AGAIN_NS, again)

    def look_at(self, account: Account) -> None:
        """Ask for everything that a queue holds."""
        wish = Browse(
            request=self.next_request(lambda frame: self._on_page(account, frame)),
            channel=account.channel,
            destination=account.destination,
            after=0,
            limit=self.chance.choice((3, 1_000)),
        )
        self.say(wish)

    def _on_page(self, account: Account, frame: ServerFrame) -> None:
        if not isinstance(frame, Browsed):
            return
        for first, _, batch in frame.pieces:
            for row, body in enumerate(Batch.decode(batch).bodies()):
                self.bank.on_delivered(account.channel, first + row, body)
        self.bank.on_shown(account.channel, account.destination, frame.through)

    # Commands.

    def lane(self, channel: str) -> Lane:
        """The numbers of the session in a channel."""
        return self.lanes.setdefault(channel, Lane())

    def order(
        self, channel: str, kind: CommandKind, payload: bytes, count: int = 1, then: Settled | None = None
    ) -> int:
        """Send a new command under the next number of its channel, and remember it."""
        number = self.lane(channel).keep(Kept(kind, count, payload, then))
        self._order(channel, number)
        return number

    def _order(self, channel: str, number: int) -> None:
        command = self.lanes[channel].command(number, self.session, self.generation)
        self.say(Command(channel=channel, command=command))

    def _on_confirm(self, frame: Confirm) -> None:
        for item in frame.items:
            if frame.session != self.session or (lane := self.lanes.get(frame.channel)) is None:
                return
            self.world.probe(f"client.outcome.{OutcomeCode(item.code).name}")
            if item.code in _USELESS:
                self.replace_session()
                return
            lane.note(item)

    # Money.

    def coin(self, account: Account, amount: int) -> Money:
        """A message that nobody else has."""
        self._bodies += 1
        body = f"{self.name}.{self.life}.{self._bodies}:{amount}".encode()
        room = self.chance.randrange(self.habits.body_bytes_max)
        return Money(account.destination, body.ljust(room, b"."))

    def transacted(self, channel: str, money: Sequence[Money]) -> bytes:
        """A batch of these that is sent in a transaction, or staged."""
        lane = self.lane(channel)
        batch = self.batch_of(money, TRANSACTED_NUMBER | lane.rows + 1)
        lane.rows += len(money)
        return batch

    def batch_of(self, money: Sequence[Money], first_number: int) -> bytes:
        """The bodies of these, as a batch of this session."""
        bodies = [one.body for one in money]
        now_ms = self.world.now_ns // MILLISECOND_NS
        return Batch.of_bodies(bodies, self.session, first_number, now_ms).encode()
