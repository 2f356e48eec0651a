"""Whatever a log says, also what no client would say: to capture a state and restore it changes nothing.

Three clients say what is drawn, with numbers that are small, near the end of the log, or as large as a number
can be. After every entry the state is captured, restored and compared (RestoredChannel). In the end a replica
that began in the middle, and one that replays everything, are equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.names import family_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    ClaimClientId,
    CommandKind,
    CreateDestination,
    ExpireClientId,
    MatchTopics,
    ReleaseClientId,
)
from antiphon.wire.transactions import Consumed, Participant
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Client, finish, forget, of_node, resolve

LAST = (1 << 64) - 1
RETENTIONS = ('{"retention":0}', '{"retention":5}', '{"retention":"consumed"}', '{"retention_bytes":300}')
RAW = (
    CommandKind.ACK,
    CommandKind.RETURN,
    CommandKind.HOLD,
    CommandKind.RELEASE,
    CommandKind.SUBSCRIBE,
    CommandKind.UNSUBSCRIBE,
    CommandKind.TX_COMMIT,
    CommandKind.TX_PUBLISH,
    CommandKind.STAGE,
    CommandKind.CREATE,
    CommandKind.DELETE,
    CommandKind.CREATE_TEMPORARY,
)


SUBSCRIPTIONS: tuple[tuple[str, str | bool], ...] = (
    ("", False),
    ("s0", False),
    ("s1", False),
    ("s1", True),
    ("", "s0"),
    ("", "s1"),
)
"""The durable name, and whether or under which name the subscription is shared."""


def client_id_of(client: Client) -> str:
    """Two of three clients have the same."""
    return f"c{client.session % 2}"


class Talk:
    """Three clients who say anything."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.channel = RestoredChannel(records_per_segment=self.chance.choice((1, 4)))
        self.clients = [Client(0xA1 + at) for at in range(3)]
        for client in self.clients:
            self.channel.order(client.open(client_id=client_id_of(client), connection=client.session % 2))
        self.destinations = [
            self.channel.create("q0"),
            self.channel.create("q1"),
            self.channel.create_topic("t2", self.chance.choice(RETENTIONS)),
        ]
        self.transaction = 0
        self.prepared: list[tuple[int, int, int]] = []
        self.steps: tuple[Callable[[Client], None], ...] = (
            self.publish,
            self.publish,
            self.acknowledge,
            self.acknowledge,
            self.give_back,
            self.subscribe,
            self.unsubscribe,
            self.hold,
            self.hold,
            self.release,
            self.transact,
            self.transact,
            self.finish,
            self.stage,
            self.commit_staged,
            self.claim,
            self.create_temporary,
            self.create_topic,
            self.delete_topic,
            self.create_family,
            self.match,
            self.match,
            self.rubbish,
            self.pass_time,
            self.begin_anew,
        )

    # -- what is drawn -----------------------------------------------------------

    @property
    def destination(self) -> int:
        return self.chance.choice(self.destinations)

    def number(self) -> int:
        """Small, near the end of the log, beyond it, or as large as can be."""
        near = self.channel.next + self.chance.randint(-30, 5)
        return self.chance.choice((max(0, near), max(0, near), 0, 1, 1 << 63, LAST - 1, LAST))

    def source(self) -> tuple[int, int]:
        """A queue, or a topic with one of its subscriptions."""
        directory = self.channel.manager.state.directory
        origins = [*directory.topics, *directory.families]
        subscriptions = [(origin.id, id) for origin in origins for id in origin.subscriptions]
        return self.chance.choice([*((id, 0) for id in self.destinations), *subscriptions])

    def ranges(self, source: tuple[int, int]) -> Ranges:
        """Some of what is there, or of what is not."""
        if self.chance.random() < 0.15:
            return Ranges([(self.number(), LAST)]) if self.chance.random() < 0.5 else Ranges()
        there = self.channel.manager.state.directory.source(*source)
        live = list(there.pending(0, 1 << 20)[0].numbers()) if there is not None else []
        at, step = self.chance.randrange(len(live) + 1), self.chance.choice((1, 1, 2))
        return Ranges([(number, number + 1) for number in live[at::step][: self.chance.randint(1, 6)]])

    # -- steps -------------------------------------------------------------------

    def publish(self, client: Client) -> None:
        bodies = [bytes(self.chance.randrange(40)) for _ in range(self.chance.randint(1, 5))]
        number = max(1, client.number - self.chance.randrange(4)) if self.chance.random() < 0.2 else None
        self.channel.order(client.publish(self.destination, bodies, number=number))

    def acknowledge(self, client: Client) -> None:
        source = self.source()
        self.channel.order(client.ack(source[0], *self.ranges(source), subscription=source[1]))

    def give_back(self, client: Client) -> None:
        source, counted = self.source(), self.chance.random() < 0.5
        ranges = self.ranges(source)
        self.channel.order(client.give_back(source[0], *ranges, counted=counted, subscription=source[1]))

    def subscribe(self, client: Client) -> None:
        start = self.chance.choice(("latest", "earliest", self.number()))
        name, shared = self.chance.choice(SUBSCRIPTIONS)
        families = [family.id for family in self.channel.manager.state.directory.families]
        command = client.subscribe(
            self.chance.choice([self.destination, *families]),
            name,
            start,
            shared=shared,
            client_id=client_id_of(client),
            no_local=not shared and self.chance.random() < 0.4,
        )
        self.channel.order(command)

    def create_topic(self, client: Client) -> None:
        name = f"t{self.channel.next}"
        self.destinations.append(self.channel.create_topic(name, self.chance.choice(RETENTIONS)))

    def delete_topic(self, client: Client) -> None:
        if len(self.destinations) > 6:
            gone = self.destinations.pop(self.chance.randrange(3, len(self.destinations)))
            self.channel.order(client.delete(gone))

    def create_family(self, client: Client) -> None:
        name = family_name("glob", self.chance.choice(("topic:*", "topic:t*3*"))).removeprefix("topic:")
        self.channel.order(of_node(CreateDestination(kind=2, name=name, settings="{}")))

    def match(self, client: Client) -> None:
        """Any decision about topics: the fold does not know which names a pattern means."""
        directory = self.channel.manager.state.directory
        families, topics = list(directory.families), [topic.id for topic in directory.topics]
        if not families:
            return
        family = self.chance.choice(families)
        through = self.chance.choice([*topics, *topics, self.number()])
        some = sorted(self.chance.sample(topics, self.chance.randrange(len(topics) + 1)))
        wish = MatchTopics(
            family=family.id,
            term=self.channel.manager.term,
            after=self.chance.choice((family.decided_through, family.decided_through, 0)),
            through=through,
            topics=Ranges.of_numbers(some),
        )
        self.channel.order(of_node(wish))

    def unsubscribe(self, client: Client) -> None:
        self.channel.order(client.unsubscribe(self.source()[1]))

    def hold(self, client: Client) -> None:
        wanted = self.chance.choice(((), (self.destination,), (self.destination, self.destination, LAST)))
        command = client.hold(
            f"h{self.chance.randrange(4)}",
            self.number(),
            *wanted,
            limit_ms=self.chance.choice((1_000, 60_000)),
            consumes=self.chance.random() < 0.4,
            acks=self.chance.random() < 0.6,
            heard=self.chance.choice((self.channel.heard, self.channel.heard, self.number())),
        )
        self.channel.order(command)

    def release(self, client: Client) -> None:
        heard = self.chance.choice((self.channel.heard, self.channel.heard, self.number()))
        self.channel.order(client.release(f"h{self.chance.randrange(4)}", heard))

    def transact(self, client: Client) -> None:
        self.transaction += 1
        number, count = self.transaction, self.chance.randrange(3)
        for index in range(count):
            self.channel.order(client.tx_publish(self.destination, [b"t"], transaction=number, index=index))
        sources = [self.source() for _ in range(self.chance.randrange(3))]
        consumed = [Consumed(*source, self.ranges(source)) for source in sources]
        way = self.chance.randrange(4)
        if way == 0:
            self.channel.order(client.tx_commit(count, count, *consumed, transaction=number))
        elif way == 1:
            self.channel.order(client.prepare(count, count, *consumed, transaction=number))
            self.prepared.append((client.session, number, count))
        elif way == 2:
            participants = self.chance.choice(((), (Participant("z", 1),)))
            command = client.decide(
                count, count, *consumed, transaction=number, participants=participants, version=number
            )
            self.channel.order(command)

    def finish(self, client: Client) -> None:
        if self.prepared and self.chance.random() < 0.7:
            session, number, count = self.prepared.pop(self.chance.randrange(len(self.prepared)))
        else:
            session, number, count = client.session, self.chance.randrange(self.transaction + 2), 0
        way = self.chance.choice((resolve, forget, None, None, None))
        if way is not None:
            self.channel.order(way(session, number))
        else:
            commits = self.chance.random() < 0.5
            self.channel.order(finish(session, number, commits=commits, messages=count))

    def stage(self, client: Client) -> None:
        command = client.stage(
            self.chance.randrange(4),
            self.destination,
            [b"s"] * self.chance.randint(1, 3),
            index=self.chance.randrange(2),
            seconds=self.chance.choice((0, 1, 60)),
            application=self.chance.choice(("a", "b")),
        )
        self.channel.order(command)

    def commit_staged(self, client: Client) -> None:
        staged = self.channel.manager.state.transactions.staged
        ids = tuple(self.chance.sample(sorted(staged), min(len(staged), self.chance.randint(0, 2))))
        batches = sum(len(staged[id].batches) for id in ids)
        messages = sum(staged[id].messages for id in ids)
        self.transaction += 1
        if self.chance.random() < 0.3:
            self.channel.order(client.drop_staged(*ids))
        elif self.chance.random() < 0.5:
            command = client.prepare(batches, messages, transaction=self.transaction, staged=ids)
            self.channel.order(command)
            self.prepared.append((client.session, self.transaction, messages))
        else:
            command = client.decide(
                batches, messages, transaction=self.transaction, staged=ids, application="a", version=1
            )
            self.channel.order(command)

    def claim(self, client: Client) -> None:
        """Something about a client id, by any connection."""
        named: dict[str, Any] = {
            "client_id": client_id_of(client),
            "connection": self.chance.randint(1, 3),
            "generation": self.chance.randint(1, 3),
        }
        term = self.channel.manager.term
        wish = self.chance.choice(
            (
                ClaimClientId(**named),
                ClaimClientId(**named),
                ReleaseClientId(**named, is_lost=self.chance.random() < 0.7),
                ExpireClientId(**named, term=term),
            )
        )
        self.channel.order(of_node(wish))

    def create_temporary(self, client: Client) -> None:
        """One more destination, or none, which may be the next that is published to, held or deleted."""
        made = self.channel.order(client.create_temporary(self.chance.choice((1, 1, 2, 2, 3))))
        if self.chance.random() < 0.5:
            self.destinations[3:] = [made]

    def rubbish(self, client: Client) -> None:
        size = self.chance.choice((0, 3, 8, 16, 17, 33, 60))
        self.channel.order(client.raw(self.chance.choice(RAW), self.chance.randbytes(size)))

    def pass_time(self, client: Client) -> None:
        self.channel.pass_time(self.chance.choice((500, 2_000, 70_000, 400_000)))

    def begin_anew(self, client: Client) -> None:
        """A term, a session, or a destination."""
        match self.chance.randrange(4):
            case 0:
                self.channel.claim(1)
            case 1:
                self.channel.order(client.close())
                anew = Client(client.session + 0x100)
                self.clients[self.clients.index(client)] = anew
                self.channel.order(anew.open(client_id=client_id_of(anew), connection=anew.session % 2))
            case 2:
                at = self.chance.randrange(3)
                self.channel.order(client.delete(self.destinations[at]))
                if at == 2:
                    made = self.channel.create_topic("t2", self.chance.choice(RETENTIONS))
                else:
                    made = self.channel.create(f"q{at}")
                self.destinations[at] = made
            case _:
                self.channel.fence(1, self.channel.manager.term)
                self.channel.open_producer(1)

    def talk(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice(self.steps)(self.chance.choice(self.clients))


@given(st.integers(0, 1 << 32), st.integers(20, 60))
def test_to_restore_what_was_captured_changes_nothing_whatever_was_said(seed: int, steps: int) -> None:
    talk = Talk(seed)
    talk.talk(steps // 2)
    middle, n = talk.channel.manager.state.capture()[1], talk.channel.manager.applied
    talk.talk(steps // 2)
    digest = talk.channel.manager.state.digest()
    assert talk.channel.replica(middle, n).state.digest() == digest, "one that began in the middle"
    assert talk.channel.replica().state.digest() == digest, "one that replays everything"


def test_a_long_talk_has_something_of_everything() -> None:
    """Keeps what is drawn honest."""
    seen: set[str] = set()
    for seed in range(24):
        talk = Talk(seed)
        for _ in range(60):
            talk.talk(1)
            state = talk.channel.manager.state
            rows = state.holds.rows.values()
            seen |= {"consumed" for row in rows if row.consumes} | {"audited" for row in rows if row.acks}
            seen |= {"kept" for one in state.directory if one.stored.count > one.live.count}
            seen |= {"acks" for _ in range(len(state.holds.acknowledgements))}
            seen |= {"prepared" for _ in state.transactions.prepared} | {"locked" for _ in state.locks}
            seen |= {"staged" for _ in state.transactions.staged}
            seen |= {"subscribed" for topic in state.directory.topics for _ in topic.subscriptions}
            seen |= {"joined" for family in state.directory.families if family.subscriptions and family.live}
            seen |= {"undecided" for _ in state.directory.undecided.families}
    assert seen == {
        *("consumed", "audited", "kept", "acks", "prepared", "locked", "staged", "subscribed"),
        *("joined", "undecided"),
    }
