"""Messages that are gathered until they leave."""

from __future__ import annotations

from datetime import timedelta

import pytest

from antiphon.batch import BODY_BYTES_MAX
from antiphon.client.core.publication import GATHERED_BYTES_MAX, SECONDS_MAX, Publication, Row
from antiphon.errors import InvalidMessage, InvalidName, MessageTooLarge


class Waiting:
    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done


@pytest.fixture
def gathering() -> Publication:
    return Publication(destination=3, settings_version=1, timestamp_ms=1_700_000_000_000, deadline_ns=0)


def test_plain_and_other_messages_keep_their_order(gathering: Publication) -> None:
    gathering.add_plain(b"one", Waiting())
    gathering.add(Row("two", {"a": 1}, 7, key="k"), Waiting())
    gathering.add_plain(b"three", Waiting())
    batch = gathering.build(9, 5)
    assert batch is not None
    assert [batch.body(row) for row in range(3)] == [b"one", "two", b"three"]
    assert (batch.properties(1), batch.priority(1), batch.key(1)) == ({"a": 1}, 7, "k")
    assert [batch.timestamp_ms(row) for row in range(3)] == [1_700_000_000_000] * 3
    assert (batch.producer, batch.first_number) == (9, 5)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (Row(b"x", {"not an identifier": 1}), InvalidName),
        (Row(b"x", {"a": object()}), InvalidMessage),  # type: ignore[dict-item]
        (Row(b"x", priority=10), InvalidMessage),
        (Row(b"x", ttl=0), InvalidMessage),
        (Row(b"x", ttl=-1.5), InvalidMessage),
        (Row(b"x", delay=True), InvalidMessage),
        (Row(b"x", delay=float("nan")), InvalidMessage),
        (Row(b"x", ttl="1h"), InvalidMessage),  # type: ignore[arg-type]
        (Row(object()), InvalidMessage),  # type: ignore[arg-type]
        (Row("x" * (BODY_BYTES_MAX + 1)), MessageTooLarge),
    ],
)
def test_a_message_that_may_not_be_sent_changes_nothing(
    gathering: Publication, row: Row, error: type[Exception]
) -> None:
    gathering.add_plain(b"good", Waiting())
    with pytest.raises(error):
        gathering.add(row, Waiting())
    batch = gathering.build(9, 1)
    assert batch is not None
    assert batch.bodies() == [b"good"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (Row(b"x", ttl=-1), "ttl is .*, more than 0 to 922,337,203,685,477 s; it was -1"),
        (Row(b"x", ttl=1e30), "ttl is .*, more than 0 to 922,337,203,685,477 s; it was 1e[+]30"),
        (Row(b"x", delay=-1), "delay is .*, 0 to 922,337,203,685,477 s; it was -1"),
    ],
)
def test_a_time_beyond_the_range_is_refused_with_the_range(
    gathering: Publication, row: Row, told: str
) -> None:
    with pytest.raises(InvalidMessage, match=told):
        gathering.add(row, Waiting())
    gathering.add(Row(b"x", ttl=SECONDS_MAX, delay=SECONDS_MAX), Waiting())
    assert gathering.build(9, 1) is not None


def test_time_to_live_and_delay_count_from_the_time_of_sending(gathering: Publication) -> None:
    gathering.add(Row(b"a", ttl=1.5, delay=timedelta(minutes=1)), Waiting())
    gathering.add(Row(b"b", ttl=0.0001, delay=0), Waiting())
    batch = gathering.build(9, 1)
    assert batch is not None
    sent_ms = 1_700_000_000_000
    assert [batch.expires_ms(row) - sent_ms for row in range(2)] == [1_500, 1]
    assert [batch.deliver_at_ms(row) for row in range(2)] == [sent_ms + 60_000, 0]


def test_a_body_that_is_too_large_is_refused(gathering: Publication) -> None:
    with pytest.raises(MessageTooLarge, match="1,048,577"):
        gathering.add_plain(bytes(BODY_BYTES_MAX + 1), Waiting())
    assert gathering.tickets == []


def test_it_is_full_when_it_is_large_or_has_left(gathering: Publication) -> None:
    gathering.add_plain(b"x", Waiting())
    assert not gathering.is_full
    gathering.add_plain(bytes(GATHERED_BYTES_MAX), Waiting())
    assert gathering.is_full


def test_what_has_been_built_takes_nothing_more(gathering: Publication) -> None:
    gathering.add_plain(b"x", Waiting())
    gathering.build(9, 1)
    assert gathering.is_full


def test_it_leaves_while_one_still_waits_and_not_after(gathering: Publication) -> None:
    first, second = Waiting(), Waiting()
    gathering.add_plain(b"a", first)
    gathering.add_plain(b"b", second)
    first.is_done = True
    batch = gathering.build(9, 1)
    assert batch is not None and batch.bodies() == [b"a", b"b"]

    other = Publication(destination=3, settings_version=1, timestamp_ms=0, deadline_ns=0)
    other.add_plain(b"a", first)
    assert other.build(9, 1) is None
    assert other.is_full
