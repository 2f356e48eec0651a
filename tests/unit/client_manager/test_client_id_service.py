"""Client ids at the door: a connection with one is let in when the system channel has given it."""

from __future__ import annotations

from antiphon.bus.effects import RunOver
from antiphon.client_manager.effects import CloseConnection, ConnectionOpened, SubmitEnvelope
from antiphon.wire import frames
from antiphon.wire.commands import (
    ClaimClientId,
    CommandKind,
    Outcome,
    OutcomeCode,
    Payload,
    ReleaseClientId,
    decode_payload,
    iterate_commands,
)
from tests.unit.client_manager.stage import Stage

IN_USE = "local.client_id_in_use"
OF_IDS = (CommandKind.CLAIM_ID, CommandKind.RELEASE_ID)


def hello(client_id: str = "desk", connection: int = 0, generation: int = 0) -> frames.Hello:
    return frames.Hello(
        user="ann", password="", client_id=client_id, connection=connection, generation=generation
    )


def greet(stage: Stage, conn: int = 1, said: frames.Hello | None = None) -> None:
    stage.step(ConnectionOpened(conn, "peer"))
    stage.say(conn, said or hello())


def claims(stage: Stage) -> list[tuple[str, Payload]]:
    """What is submitted about client ids, with the channels."""
    return [
        (envelope.channel, decode_payload(header.kind, payload))
        for envelope in stage.of_kind(SubmitEnvelope)
        for header, payload, _ in iterate_commands(envelope.payload)
        if header.kind in OF_IDS
    ]


def taken(*, is_lost: bool) -> Outcome:
    return Outcome(0, 1, OutcomeCode.EXISTS, int(is_lost), "another connection has the client id 'desk'")


def is_welcome(stage: Stage, conn: int = 1) -> bool:
    return bool(stage.heard_of(frames.Welcome, conn))


def test_a_connection_with_a_client_id_is_welcome_when_its_claim_is_applied() -> None:
    stage = Stage(channels=("b", "a", "c"))
    greet(stage)
    assert not is_welcome(stage)
    ((channel, claim),) = claims(stage)
    assert channel == "a", "the lowest name is that of the system channel"
    stage.confirm()
    (welcome,) = stage.heard_of(frames.Welcome)
    assert claim == ClaimClientId(client_id="desk", connection=welcome.connection, generation=1)


def test_a_connection_without_a_client_id_claims_nothing() -> None:
    stage = Stage()
    greet(stage, said=hello(""))
    assert is_welcome(stage) and claims(stage) == []
    stage.lose()
    assert claims(stage) == []


def test_nothing_may_be_said_before_the_welcome_and_no_second_hello() -> None:
    for frame in (hello(), frames.Ping(nonce=1)):
        stage = Stage()
        greet(stage)
        stage.say(1, frame)
        assert stage.goodbye().code == "remote.protocol"


def test_a_connection_whose_client_id_another_has_is_refused() -> None:
    stage = Stage()
    greet(stage)
    stage.confirm(taken(is_lost=False))
    goodbye = stage.goodbye()
    assert goodbye.code == IN_USE and "another connection" in goodbye.text
    assert len(claims(stage)) == 1, "it has nothing to release"


def test_while_the_one_that_has_it_is_lost_a_new_connection_waits() -> None:
    stage = Stage(request_interval_ms=200, directory_wait_ms=5_000)
    greet(stage)
    stage.confirm(taken(is_lost=True))
    assert not stage.of_kind(CloseConnection)
    stage.wait(200)
    assert len(claims(stage)) == 2
    stage.confirm(taken(is_lost=True))
    stage.wait(200)
    stage.confirm()
    assert is_welcome(stage)
    stage.wait(10_000)
    assert not stage.of_kind(CloseConnection) and len(claims(stage)) == 3


def test_it_waits_not_for_ever() -> None:
    stage = Stage(request_interval_ms=200, directory_wait_ms=500)
    greet(stage)
    for _ in range(3):
        stage.confirm(taken(is_lost=True))
        stage.wait(200)
    stage.confirm_all()
    assert stage.goodbye().code == IN_USE


def test_a_system_channel_that_orders_nothing_is_told_and_a_late_claim_is_released() -> None:
    stage = Stage(directory_wait_ms=500)
    greet(stage)
    stage.wait(500)
    goodbye = stage.goodbye()
    assert goodbye.code == "client_id.unavailable" and "orders nothing" in goodbye.text
    stage.confirm_all()
    _, (_, release) = claims(stage)
    assert isinstance(release, ReleaseClientId) and not release.is_lost
    assert not is_welcome(stage)


def test_a_connection_that_comes_back_is_welcome_at_once_and_claims_in_its_generation() -> None:
    stage = Stage()
    greet(stage, said=hello(connection=77, generation=3))
    (welcome,) = stage.heard_of(frames.Welcome)
    assert welcome.connection == 77
    assert claims(stage) == [("a", ClaimClientId(client_id="desk", connection=77, generation=3))]
    stage.confirm()
    stage.wait(10_000)
    assert not stage.of_kind(CloseConnection)


def test_it_is_closed_if_another_has_the_client_id_by_then() -> None:
    stage = Stage()
    greet(stage, said=hello(connection=77, generation=3))
    stage.open_session()
    stage.confirm(taken(is_lost=False))
    assert stage.goodbye().code == IN_USE
    assert stage.manager.session_count == 0


def test_one_that_went_on_elsewhere_meanwhile_is_left_alone() -> None:
    stage = Stage()
    greet(stage, said=hello(connection=77, generation=3))
    stage.confirm(Outcome(0, 1, OutcomeCode.STALE))
    assert not stage.of_kind(CloseConnection)
    stage.lose()
    assert len(claims(stage)) == 1, "the claim is another's to release"


def test_a_connection_in_a_generation_that_cannot_be_is_a_breach() -> None:
    for connection, generation in ((0, 1), (0, 2), (77, 0), (77, 1)):
        stage = Stage()
        greet(stage, said=hello("", connection, generation))
        assert stage.goodbye().code == "remote.protocol"


def test_a_parting_releases_and_a_loss_says_that_it_is_one() -> None:
    stage = Stage()
    for conn in (1, 2):
        greet(stage, conn, hello(f"c{conn}"))
        stage.confirm()
    stage.say(1, frames.Goodbye(code="", text=""))
    stage.lose(2)
    released = [one for _, one in claims(stage) if isinstance(one, ReleaseClientId)]
    assert [(one.client_id, one.generation, one.is_lost) for one in released] == [
        ("c1", 1, False),
        ("c2", 1, True),
    ]


def test_the_socket_of_one_that_parts_is_closed_when_its_client_id_is_free() -> None:
    stage = Stage()
    greet(stage)
    stage.confirm()
    stage.open_session()
    stage.say(1, frames.Goodbye(code="", text=""))
    assert stage.manager.session_count == 0
    assert not stage.of_kind(CloseConnection)
    stage.confirm_all()
    (close,) = stage.of_kind(CloseConnection)
    assert (close.conn, close.code) == (1, "")


def test_the_socket_of_one_without_a_client_id_is_closed_at_once() -> None:
    stage = Stage()
    greet(stage, said=hello(""))
    stage.say(1, frames.Goodbye(code="", text=""))
    assert len(stage.of_kind(CloseConnection)) == 1


def test_a_client_that_leaves_before_its_welcome_cannot_come_back() -> None:
    stage = Stage()
    greet(stage)
    stage.lose()
    stage.confirm_all()
    _, (_, release) = claims(stage)
    assert isinstance(release, ReleaseClientId) and not release.is_lost


def test_behind_a_fence_all_connections_claim_once_more() -> None:
    stage = Stage(channels=("a", "b"))
    for conn in (1, 2):
        greet(stage, conn, hello(f"c{conn}"))
        stage.confirm()
    stage.lose(2)
    stage.confirm_all()
    stage.effects.clear()
    stage.tell(RunOver(), channel="b")
    assert claims(stage) == []
    stage.tell(RunOver())
    ((_, claim),) = claims(stage)
    assert isinstance(claim, ClaimClientId) and (claim.client_id, claim.generation) == ("c1", 1)
    stage.confirm(taken(is_lost=False))
    assert stage.goodbye().code == IN_USE, "another was faster"
