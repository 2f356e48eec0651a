"""What an application stages: nobody's until it is committed, kept for its time, and committed once."""

from __future__ import annotations

import pytest

from antiphon.message_manager.fold import transactions as transaction_fold
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state import transactions
from antiphon.wire.commands import OutcomeCode
from antiphon.wire.transactions import STAGED_SECONDS_MAX
from tests.unit.message_manager.channel import AT_ONCE, CM, SESSION, Client, bodies, delivered, finish
from tests.unit.message_manager.fold.test_transactions import Stage
from tests.unit.message_manager.fold.test_two_phases import code_of

PART, PART_2 = 0x77, 0x78


class Sink(Stage):
    """`client` is the driver; `worker` stages two batches of two."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Client(0xB2)
        self.channel.order(self.worker.open())

    def stage(self, part: int = PART, *, seconds: int = 60) -> None:
        for index in range(2):
            command = self.worker.stage(
                part, self.orders, bodies(2, f"{part}-{index}-"), index=index, seconds=seconds
            )
            assert self.channel.outcome(command) is None

    @property
    def parts(self) -> list[int]:
        return sorted(self.transactions.staged)


def test_what_is_staged_takes_one_number_and_is_not_seen() -> None:
    sink = Sink()
    before = sink.channel.next
    sink.stage()
    assert sink.channel.next == before + 2
    assert sink.messages(sink.orders) == []
    assert sink.channel.manager.status()["transactions"]["staged"] == 1


def test_it_outlives_its_session_its_client_manager_and_the_primary() -> None:
    sink = Sink()
    sink.stage()
    sink.channel.fence(CM, sink.channel.manager.term)
    sink.channel.claim(1)
    sink.channel.order(sink.worker.close())
    assert sink.parts == [PART]


def test_the_driver_commits_it_in_the_order_in_which_it_names_the_parts() -> None:
    sink = Sink()
    sink.channel.register(7, sink.orders)
    sink.stage(PART)
    sink.stage(PART_2)
    decide = sink.client.decide(4, 8, staged=(PART_2, PART), participants=(), application="app", version=0)
    first = sink.channel.order(decide)
    assert sink.messages(sink.orders) == list(range(first, first + 8))
    got = [body for _, _, body, _ in delivered(sink.channel.flush())]
    assert got == [
        b"%d-%d-%d" % (part, at, row) for part in (PART_2, PART) for at in (0, 1) for row in (0, 1)
    ]
    assert sink.parts == [] and sink.is_clean()


def test_a_participant_commits_it_with_its_finish() -> None:
    sink = Sink()
    sink.stage()
    assert sink.channel.outcome(sink.client.prepare(2, 4, staged=(PART,))) is None
    assert sink.messages(sink.orders) == []
    first = sink.channel.order(finish(SESSION, 1, commits=True, messages=4))
    assert sink.messages(sink.orders) == list(range(first, first + 4))
    assert sink.parts == [] and sink.is_clean()


def test_while_it_is_promised_it_is_nobody_elses_and_time_does_not_touch_it() -> None:
    sink = Sink()
    sink.stage(seconds=1)
    sink.channel.order(sink.client.prepare(2, 4, staged=(PART,)))
    outcome = sink.channel.outcome(sink.worker.prepare(2, 4, staged=(PART,)))
    assert code_of(outcome) == OutcomeCode.TX_ROLLED_BACK
    outcome = sink.channel.outcome(sink.worker.stage(PART, sink.orders, bodies(1), index=2))
    assert code_of(outcome) == OutcomeCode.REFUSED
    assert sink.channel.outcome(sink.client.drop_staged(PART)) is None
    sink.channel.pass_time(10_000)
    sink.channel.pass_time(10_000)
    assert sink.channel.outcome(finish(SESSION, 1, commits=True, messages=4)) is None
    assert len(sink.messages(sink.orders)) == 4


def test_after_a_roll_back_it_is_staged_as_before() -> None:
    sink = Sink()
    sink.stage(seconds=100)
    sink.channel.order(sink.client.prepare(2, 4, staged=(PART,)))
    sink.channel.pass_time(90_000)
    sink.channel.order(finish(SESSION, 1, commits=False))
    sink.channel.pass_time(90_000)
    sink.channel.pass_time(90_000)
    assert sink.channel.outcome(sink.client.prepare(2, 4, staged=(PART,), transaction=2)) is None
    assert sink.channel.outcome(finish(SESSION, 2, commits=True, messages=4)) is None
    assert len(sink.messages(sink.orders)) == 4


def test_a_version_is_committed_once_and_what_was_staged_for_it_again_is_dropped() -> None:
    sink = Sink()
    sink.stage()
    commit = {"participants": (), "application": "app"}
    assert sink.channel.outcome(sink.client.decide(2, 4, staged=(PART,), version=5, **commit)) is None  # type: ignore[arg-type]
    for version in (5, 4):
        sink.stage(PART_2)
        again = sink.client.decide(2, 4, staged=(PART_2,), version=version, transaction=2, **commit)  # type: ignore[arg-type]
        assert code_of(sink.channel.outcome(again)) == OutcomeCode.DUPLICATE
        assert sink.parts == []
    assert len(sink.messages(sink.orders)) == 4
    sink.stage(PART_2)
    later = sink.client.decide(2, 4, staged=(PART_2,), version=6, transaction=2, **commit)  # type: ignore[arg-type]
    assert sink.channel.outcome(later) is None
    assert len(sink.messages(sink.orders)) == 8


def test_versions_of_applications_are_their_own_and_begin_with_any() -> None:
    sink = Sink()
    for transaction, application in enumerate(("one", "two"), 1):
        decide = sink.client.decide(
            0, 0, participants=(), application=application, version=0, transaction=transaction
        )
        assert sink.channel.outcome(decide) is None
    again = sink.client.decide(0, 0, participants=(), application="one", version=0, transaction=3)
    assert code_of(sink.channel.outcome(again)) == OutcomeCode.DUPLICATE


def test_of_too_many_applications_the_one_that_committed_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "APPLICATIONS_MAX", 2)
    sink = Sink()
    committed = (("z", 0), ("a", 0), ("z", 1))
    for transaction, (application, version) in enumerate(committed, 1):
        decide = sink.client.decide(
            0, 0, participants=(), application=application, version=version, transaction=transaction
        )
        assert sink.channel.outcome(decide) is None
    # Which of them that is, a checkpoint tells.
    n = sink.channel.mark()
    again = MessageManager("main", 1, sink.channel.payloads, AT_ONCE)
    again.restore(sink.channel.manager.capture(n)[1])
    sink.channel.manager = again
    sink.channel.order(sink.client.decide(0, 0, participants=(), application="m", version=7, transaction=4))
    assert sink.transactions.done == {"z": 1, "m": 7}


def test_what_is_staged_is_that_of_a_limited_number_of_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_fold, "APPLICATIONS_MAX", 2)
    sink = Sink()

    def stage(part: int, application: str, index: int = 0) -> OutcomeCode:
        command = sink.worker.stage(part, sink.orders, bodies(1), application=application, index=index)
        return code_of(sink.channel.outcome(command))

    assert stage(1, "one") == stage(2, "two") == OutcomeCode.APPLIED
    assert stage(3, "three") == OutcomeCode.REFUSED
    assert stage(1, "one", 1) == stage(4, "two") == OutcomeCode.APPLIED
    sink.channel.order(sink.client.drop_staged(1))
    assert stage(3, "three") == OutcomeCode.APPLIED


def test_what_is_gone_cannot_be_committed() -> None:
    sink = Sink()
    sink.stage()
    for command in (
        sink.client.prepare(4, 8, staged=(PART, PART_2)),
        sink.client.prepare(4, 8, staged=(PART, PART)),
        sink.client.prepare(2, 3, staged=(PART,)),
    ):
        assert code_of(sink.channel.outcome(command)) == OutcomeCode.TX_ROLLED_BACK
    assert sink.parts == [PART], "it is still the application's"


def test_to_drop_is_harmless_after_the_commit_and_of_what_is_not_there() -> None:
    sink = Sink()
    sink.stage(PART)
    sink.stage(PART_2)
    sink.channel.order(
        sink.client.decide(2, 4, staged=(PART,), participants=(), application="app", version=1)
    )
    assert sink.channel.outcome(sink.client.drop_staged(PART, PART_2, 0x79)) is None
    assert len(sink.messages(sink.orders)) == 4
    assert sink.parts == [] and sink.is_clean()


def test_it_lives_by_its_time_limit_which_begins_anew_with_every_batch() -> None:
    sink = Sink()
    sink.channel.order(sink.worker.stage(PART, sink.orders, bodies(1), seconds=10))
    sink.channel.pass_time(1_000_000)
    sink.channel.pass_time(9_000)
    sink.channel.order(sink.worker.stage(PART, sink.orders, bodies(1), index=1, seconds=10))
    sink.channel.pass_time(9_000)
    sink.channel.pass_time(10_000)
    assert sink.parts == [PART]
    sink.channel.pass_time(1)
    assert sink.parts == [] and sink.is_clean()
    assert sink.channel.manager.live_bytes_by_segment() == {}


def test_a_batch_out_of_turn_drops_the_part() -> None:
    sink = Sink()
    sink.stage()
    outcome = sink.channel.outcome(sink.worker.stage(PART, sink.orders, bodies(1), index=1))
    assert code_of(outcome) == OutcomeCode.TX_ROLLED_BACK
    assert sink.parts == [] and sink.is_clean()


def test_a_part_is_of_one_application() -> None:
    sink = Sink()
    sink.stage()
    outcome = sink.channel.outcome(
        sink.worker.stage(PART, sink.orders, bodies(1), index=2, application="another")
    )
    assert code_of(outcome) == OutcomeCode.REFUSED
    assert sink.parts == [PART]


@pytest.mark.parametrize(
    ("limit", "value"), [("STAGED_BYTES_MAX", 200), ("STAGED_MESSAGES_MAX", 3), (None, 0)]
)
def test_what_is_too_much_is_refused_and_drops_the_part(
    limit: str | None, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink()
    sink.channel.order(sink.worker.stage(PART, sink.orders, bodies(2)))
    sink.channel.order(sink.worker.stage(PART_2, sink.orders, bodies(2)))
    if limit is not None:
        monkeypatch.setattr(transaction_fold, limit, value)
    seconds = 60 if limit is not None else STAGED_SECONDS_MAX + 1
    outcome = sink.channel.outcome(sink.worker.stage(PART, sink.orders, bodies(2), index=1, seconds=seconds))
    assert code_of(outcome) == OutcomeCode.REFUSED
    assert sink.parts == [PART_2]
    # What was dropped does not count any more.
    assert sink.channel.outcome(sink.worker.stage(PART, sink.orders, bodies(1))) is None


def test_a_commit_of_more_than_a_transaction_may_have_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    sink.stage(PART)
    sink.stage(PART_2)
    monkeypatch.setattr(transaction_fold, "STAGED_MESSAGES_MAX", 7)
    outcome = sink.channel.outcome(sink.client.prepare(4, 8, staged=(PART, PART_2)))
    assert outcome is not None and "at most 7 messages" in outcome.text
    assert sink.parts == [PART, PART_2]


def test_a_commit_of_staged_parts_may_have_more_than_a_sessions_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of Spark cannot be cut in two; the work of its commit is by the batch, not by the message."""
    sink = Sink()
    sink.stage(PART)
    sink.stage(PART_2)
    monkeypatch.setattr(transaction_fold, "TRANSACTION_MESSAGES_MAX", 7)
    decide = sink.client.decide(4, 8, staged=(PART, PART_2), participants=(), application="app", version=0)
    first = sink.channel.order(decide)
    assert sink.messages(sink.orders) == list(range(first, first + 8))


def test_it_is_in_the_checkpoint_with_its_time_and_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Sink()
    sink.stage(PART, seconds=10)
    sink.stage(PART_2)
    sink.channel.order(sink.client.prepare(2, 4, staged=(PART_2,)))
    sink.channel.order(sink.client.decide(0, 0, participants=(), application="app", version=3, transaction=2))
    sink.channel.pass_time(1_000)
    n = sink.channel.mark()
    digest, data, segments = sink.channel.manager.capture(n)
    again = MessageManager("main", 1, sink.channel.payloads, AT_ONCE)
    again.restore(data)
    assert again.capture(n) == (digest, data, segments)
    before = sink.transactions.staged_bytes("app")
    sink.channel.manager = again
    assert sink.transactions.staged_bytes("app") == before > 0
    duplicate = sink.client.decide(0, 0, participants=(), application="app", version=3, transaction=4)
    assert code_of(sink.channel.outcome(duplicate)) == OutcomeCode.DUPLICATE
    sink.channel.pass_time(10_001)
    assert sink.parts == [PART_2]
    assert sink.channel.outcome(finish(SESSION, 1, commits=True, messages=4)) is None
    assert len(sink.messages(sink.orders)) == 4 and sink.parts == []
