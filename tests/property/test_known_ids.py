"""The application's own ids against a dictionary, whatever is ordered between two messages with the same id.

Sessions publish in batches and transactions, messages are acknowledged, time passes, windows change, and the
state is captured and restored after every entry.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.state import known_ids
from antiphon.wire.commands import AlterDestination, OutcomeCode
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Client, of_node

IDS_MAX = 5

client = st.integers(0, 1)
ids = st.lists(st.sampled_from([None, "a", "b", "c", "d", "e", "f", "g"]), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("publish"), client, ids)] * 3,
        st.tuples(st.just("repeat"), client),
        st.tuples(st.just("send"), client, ids),
        st.tuples(st.just("commit"), client),
        st.tuples(st.just("roll_back"), client),
        st.tuples(st.just("acknowledge"), client, st.integers(0, 9)),
        *[st.tuples(st.just("pass_time"), st.sampled_from([0, 100, 300, 700, 1_000]))] * 4,
        st.tuples(st.just("alter"), st.sampled_from([0, 0.3, 1])),
    ),
    min_size=10,
    max_size=40,
)


class Memory:
    """The ids that a destination remembers, one by one."""

    def __init__(self) -> None:
        self.window_ms = 1_000
        self.rows: list[list[Any]] = []  # id, number, log time of the next mark

    def first(self, id: str | None, number: int) -> int | None:
        """The number of the message with this id; None if this one is the first."""
        for known, at, _ in self.rows:
            if known == id:
                return int(at)
        if id is not None and self.window_ms:
            self.rows = [*self.rows, [id, number, None]][-IDS_MAX:]
        return None

    def pass_time(self, now_ms: int) -> None:
        for row in self.rows:
            row[2] = now_ms if row[2] is None else row[2]
        self.rows = [row for row in self.rows if now_ms - row[2] < self.window_ms]

    def alter(self, window_ms: int) -> None:
        self.window_ms = window_ms
        if not window_ms:
            self.rows = []


class Scene:
    def __init__(self, kind: int) -> None:
        self.channel = RestoredChannel()
        self.clients = [Client(0xA1), Client(0xB2)]
        self.channel.order(*[one.open() for one in self.clients])
        settings = '{"dedup_window":1}' if kind == 1 else '{"dedup_window":1,"retention":3600}'
        self.destination = self.channel.create("orders", kind, settings)
        self.channel.pass_time(1_000)
        self.is_queue = kind == 1
        self.memory = Memory()
        self.live: set[int] = set()
        self.published = self.known = 0
        # By client: its last publish, and the batches of its open transaction.
        self.last: dict[int, tuple[int, list[str | None], list[Any]]] = {}
        self.open: dict[int, list[list[str | None]]] = {0: [], 1: []}

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *drawn in steps:
            getattr(self, f"_{name}")(*drawn)
            self._compare()

    def _outcomes(self, first: int) -> list[tuple[int, int, int]]:
        """Every number of the last command that was not simply applied: number, code, original."""
        manager = self.channel.manager
        _, _, rows = manager.state.outcomes.page(first - 1, manager.applied)
        return [(one.first + row, one.code, one.original + row) for one in rows for row in range(one.count)]

    def _become_visible(self, ids: list[str | None], first: int) -> list[Any]:
        told = []
        for number, id in enumerate(ids, first):
            before = self.memory.first(id, number)
            if before is None:
                self.live.add(number)
                self.published += 1
            else:
                self.known += 1
                told.append((number, OutcomeCode.KNOWN, before))
        return told

    def _publish(self, who: int, ids: list[str | None]) -> None:
        one = self.clients[who]
        number = one.number
        rows = [{"body": b"x", "dedup_id": id} for id in ids]
        first = self.channel.order(one.publish_rows(self.destination, *rows))
        told = self._become_visible(ids, first)
        assert self._outcomes(first) == told
        self.last[who] = (number, ids, [(first, told)])

    def _repeat(self, who: int) -> None:
        if who not in self.last or self.last[who][0] != self.clients[who].number - len(self.last[who][1]):
            return
        number, ids, ((first, told),) = self.last[who]
        rows = [{"body": b"x", "dedup_id": id} for id in ids]
        again = self.channel.order(self.clients[who].publish_rows(self.destination, *rows, number=number))
        known = {at - first: original for at, _, original in told}
        assert self._outcomes(again) == [
            (again + row, OutcomeCode.KNOWN, known[row])
            if row in known
            else (again + row, OutcomeCode.DUPLICATE, first + row)
            for row in range(len(ids))
        ]

    def _send(self, who: int, ids: list[str | None]) -> None:
        rows = [{"body": b"x", "dedup_id": id} for id in ids]
        batches = self.open[who]
        command = self.clients[who].tx_publish_rows(self.destination, *rows, index=len(batches))
        assert self.channel.outcome(command) is None
        batches.append(ids)

    def _commit(self, who: int) -> None:
        batches, self.open[who] = self.open[who], []
        if not batches:
            return
        messages = sum(map(len, batches))
        first = self.channel.order(self.clients[who].tx_commit(len(batches), messages))
        assert self._outcomes(first) == []
        for ids in batches:
            self._become_visible(ids, first)
            first += len(ids)
        self._go_on(who)

    def _roll_back(self, who: int) -> None:
        if self.open[who]:
            self.open[who] = []
            self._go_on(who)

    def _go_on(self, who: int) -> None:
        """End the session, and what is open in it, and begin another: each has one transaction here."""
        old = self.clients[who]
        self.clients[who] = new = Client(old.session + 0x100)
        self.channel.order(old.close(), new.open())
        self.last.pop(who, None)

    def _acknowledge(self, who: int, which: int) -> None:
        if self.is_queue and self.live:
            number = sorted(self.live)[which % len(self.live)]
            self.live.remove(number)
            self.channel.order(self.clients[who].ack(self.destination, (number, number + 1)))

    def _pass_time(self, ms: int) -> None:
        self.channel.pass_time(ms)
        if ms:
            # A mark that moves nothing is passed over.
            self.memory.pass_time(self.channel.wall_ms)

    def _alter(self, window_s: float) -> None:
        wish = AlterDestination(destination=self.destination, settings=f'{{"dedup_window":{window_s}}}')
        assert self.channel.outcome(of_node(wish)) is None
        self.memory.alter(round(window_s * 1_000))

    def _compare(self) -> None:
        state = self.channel.manager.state
        store = state.directory.get(self.destination)
        assert store is not None
        assert set(store.live.numbers()) == self.live
        assert (store.published, store.duplicates) == (self.published, self.known)
        assert state.known_ids.count(self.destination) == len(self.memory.rows) <= IDS_MAX
        if self.memory.rows:
            since = min((row[2] for row in self.memory.rows if row[2] is not None), default=0)
            is_unmarked = any(row[2] is None for row in self.memory.rows)
            assert state.known_ids.due_ms() == (0 if is_unmarked else since + self.memory.window_ms)


@given(st.sampled_from([1, 2]), steps)
def test_exactly_the_messages_whose_id_is_not_remembered_are_stored(
    kind: int, steps: list[tuple[Any, ...]]
) -> None:
    with mock.patch.object(known_ids, "IDS_MAX", IDS_MAX):
        Scene(kind).play(steps)
