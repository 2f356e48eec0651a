"""Client ids as the log gives and frees them: each belongs to one connection."""

from __future__ import annotations

import pytest

from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.sessions import NOBODY
from antiphon.wire.commands import ClaimClientId, ExpireClientId, Outcome, ReleaseClientId, read_command
from antiphon.wire.commands import OutcomeCode as C
from tests.unit.message_manager.channel import CM, NODE, Channel, of_node, proposals

ONE, TWO = 0xC1, 0xC2
OTHER_MANAGER = CM + 1
KEPT_MS = 2_000


@pytest.fixture
def channel() -> Channel:
    return Channel(MessageManagerSettings(registration_wait_ms=0, client_id_kept_ms=KEPT_MS))


def claim(connection: int, generation: int = 1, client_id: str = "desk") -> bytes:
    return of_node(ClaimClientId(client_id=client_id, connection=connection, generation=generation))


def release(connection: int, generation: int = 1, *, is_lost: bool = False) -> bytes:
    return of_node(
        ReleaseClientId(client_id="desk", connection=connection, generation=generation, is_lost=is_lost)
    )


def expire(channel: Channel, connection: int, generation: int = 1, term: int | None = None) -> bytes:
    term = channel.manager.term if term is None else term
    return of_node(ExpireClientId(client_id="desk", connection=connection, generation=generation, term=term))


def has(channel: Channel) -> int | None:
    """The connection that has the client id."""
    found = channel.manager.state.client_ids.get("desk")
    return None if found is None else found.connection


def code(outcome: Outcome | None) -> int:
    return C.APPLIED if outcome is None else outcome.code


def proposed(channel: Channel) -> list[bytes]:
    """The ends of claims that the primary proposes now."""
    commands = [proposal.command for proposal in proposals(channel.flush())]
    return [one for one in commands if read_command(one)[0].kind == 42]


def test_of_two_connections_at_two_client_managers_the_first_in_the_order_has_it(channel: Channel) -> None:
    channel.order(claim(ONE))
    refused = channel.outcome(claim(TWO), pid=OTHER_MANAGER)
    assert refused is not None and (refused.code, refused.original) == (C.EXISTS, 0)
    assert "another connection has the client id 'desk'" in refused.text
    assert has(channel) == ONE
    assert channel.outcome(claim(TWO, client_id="lab"), pid=OTHER_MANAGER) is None


def test_a_connection_that_comes_back_elsewhere_keeps_it(channel: Channel) -> None:
    channel.order(claim(ONE))
    assert channel.outcome(claim(ONE, 2), pid=OTHER_MANAGER) is None
    assert code(channel.outcome(claim(ONE, 1))) == C.STALE, "the former one is late"
    assert code(channel.outcome(release(ONE, 1))) == C.STALE
    found = channel.manager.state.client_ids.get("desk")
    assert found is not None and (found.generation, found.owner.pid) == (2, OTHER_MANAGER)


def test_a_parting_frees_it_at_once(channel: Channel) -> None:
    channel.order(claim(ONE))
    assert code(channel.outcome(release(TWO))) == C.STALE, "another's"
    assert channel.outcome(release(ONE)) is None
    assert channel.outcome(claim(TWO)) is None and has(channel) == TWO


def test_a_lost_connection_keeps_it_for_a_while(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.order(release(ONE, is_lost=True))
    refused = channel.outcome(claim(TWO), pid=OTHER_MANAGER)
    assert refused is not None and (refused.code, refused.original) == (C.EXISTS, 1)
    assert proposed(channel) == []
    channel.now_ns += KEPT_MS * 1_000_000 - 1
    assert proposed(channel) == []
    channel.now_ns += 1
    (end,) = proposed(channel)
    assert channel.outcome(end) is None
    assert has(channel) is None
    channel.now_ns += 10 * KEPT_MS * 1_000_000
    assert proposed(channel) == []


def test_a_lost_connection_that_comes_back_in_time_keeps_it(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.order(release(ONE, is_lost=True))
    channel.flush()
    channel.now_ns += KEPT_MS * 1_000_000
    (end,) = proposed(channel)
    channel.order(claim(ONE, 2), pid=OTHER_MANAGER)
    assert code(channel.outcome(end)) == C.STALE, "it was proposed before"
    channel.now_ns += 10 * KEPT_MS * 1_000_000
    assert proposed(channel) == [] and has(channel) == ONE


def test_an_end_that_is_lost_is_proposed_again(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.order(release(ONE, is_lost=True))
    channel.flush()
    for _ in range(2):
        channel.now_ns += KEPT_MS * 1_000_000
        assert len(proposed(channel)) == 1


@pytest.mark.parametrize("way", ["fence", "open"])
def test_the_connections_of_a_client_manager_that_is_gone_are_lost(channel: Channel, way: str) -> None:
    channel.order(claim(ONE))
    channel.order(claim(TWO, client_id="lab"), pid=OTHER_MANAGER)
    if way == "fence":
        channel.fence(CM, channel.manager.term)
    else:
        channel.open_producer(CM)
    lost = [one.client_id for one in channel.manager.state.client_ids if one.owner == NOBODY]
    assert lost == ["desk"]
    channel.flush()
    channel.now_ns += KEPT_MS * 1_000_000
    (end,) = proposed(channel)
    channel.order(end)
    assert channel.outcome(claim(TWO), pid=OTHER_MANAGER) is None


def test_a_client_manager_that_lives_claims_again_behind_its_fence(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.open_producer(CM)
    assert channel.outcome(claim(ONE)) is None
    found = channel.manager.state.client_ids.get("desk")
    assert found is not None and not found.is_lost
    channel.flush()
    channel.now_ns += 10 * KEPT_MS * 1_000_000
    assert proposed(channel) == []


def test_only_the_primary_of_the_term_ends_a_claim_and_only_a_lost_one(channel: Channel) -> None:
    channel.order(claim(ONE))
    assert code(channel.outcome(expire(channel, ONE))) == C.STALE
    channel.order(release(ONE, is_lost=True))
    term = channel.manager.term
    channel.claim(NODE)
    assert code(channel.outcome(expire(channel, ONE, term=term))) == C.STALE
    assert code(channel.outcome(expire(channel, TWO))) == C.STALE
    assert code(channel.outcome(expire(channel, ONE))) == C.APPLIED


def test_the_next_primary_counts_anew(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.order(release(ONE, is_lost=True))
    channel.flush()
    channel.now_ns += KEPT_MS * 1_000_000 - 1
    channel.claim(NODE)
    assert proposed(channel) == []
    channel.now_ns += 1
    assert proposed(channel) == []
    channel.now_ns += KEPT_MS * 1_000_000
    assert len(proposed(channel)) == 1


def test_claims_are_a_part_of_the_state(channel: Channel) -> None:
    channel.order(claim(ONE))
    channel.order(claim(TWO, 7, client_id="lab"), pid=OTHER_MANAGER)
    channel.order(release(ONE, is_lost=True))
    digest, data = channel.manager.state.capture()
    again = ChannelState.restore(data)
    assert again.digest() == digest
    rows = [
        [(one.client_id, one.connection, one.generation, one.owner) for one in ids]
        for ids in (channel.manager.state.client_ids, again.client_ids)
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 2
