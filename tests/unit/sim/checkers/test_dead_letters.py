"""The checker of dead messages sees what it is to see."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch
from antiphon.message_manager.delivery.burials import Burials
from antiphon.message_manager.effects import Propose
from antiphon.sim.checkers.dead_letters import DeadLetters
from antiphon.sim.trace import Trace
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import BuryMessages, CommandKind, decode_payload, iterate_commands
from tests.unit.message_manager.channel import Channel, Client, bodies, of_node


def show(channel: Channel, checker: DeadLetters, since: int = 0) -> None:
    """Let the checker see the log from there on, with the state of now."""
    for entry, payload in channel.log[since:]:
        checker.on_applied(1, entry, None if payload is None else memoryview(payload))
    checker.on_folded(1, channel.log[-1][0], channel.manager.state)


def a_death(channel: Channel) -> tuple[Client, BuryMessages]:
    """A rejected message, and the command that is proposed for it."""
    client = Client()
    channel.order(client.open())
    queue = channel.create("orders")
    channel.create("_DMQ")
    first = channel.order(client.publish(queue, bodies(2)))
    channel.order(client.reject(queue, (first, first + 1)))
    for effect in channel.flush():
        if isinstance(effect, Propose):
            header, body, _ = next(iterate_commands(effect.command))
            if header.kind == CommandKind.DEAD:
                wish = decode_payload(header.kind, body)
                assert isinstance(wish, BuryMessages)
                return client, wish
    raise AssertionError("nothing was proposed")


def test_a_message_that_is_moved_as_it_was_passes() -> None:
    channel, checker = Channel(), DeadLetters(World(1, Trace()))
    _, wish = a_death(channel)
    show(channel, checker)
    channel.order(of_node(wish))
    show(channel, checker, -1)


def test_another_body_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, checker = Channel(), DeadLetters(World(1, Trace()))
    real = Burials._build

    def other_body(self: Burials, now_ns: int, wall_ms: int, death: object) -> object:
        built = real(self, now_ns, wall_ms, death)  # type: ignore[arg-type]
        assert isinstance(built, tuple)
        return Batch.of_bodies([b"another"], 0, 1, 0), built[1]

    monkeypatch.setattr(Burials, "_build", other_body)
    _, wish = a_death(channel)
    show(channel, checker)
    channel.order(of_node(wish))
    with pytest.raises(Violation, match="has another body since"):
        show(channel, checker, -1)


def test_accounts_that_do_not_add_up_are_seen() -> None:
    channel, checker = Channel(), DeadLetters(World(1, Trace()))
    a_death(channel)
    show(channel, checker)
    channel.manager.state.directory.named("queue:orders").dead += 1  # type: ignore[union-attr]
    channel.mark()
    with pytest.raises(Violation, match="2 of 2 messages of queue:orders, and 1 are gone"):
        show(channel, checker, -1)
