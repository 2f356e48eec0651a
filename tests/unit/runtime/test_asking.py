"""Nodes that start ask each other, over a network of queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from antiphon.bus import messages as m
from antiphon.bus.effects import Effect, Send
from antiphon.bus.messages import About, Query, Reply
from antiphon.cluster.agreement import Agreement, ConfigCard
from antiphon.cluster.config_file import digest, essential_keys
from antiphon.cluster.topology import ClusterSpec
from antiphon.node import InChannel
from antiphon.runtime.asking import Line, ask_members
from antiphon.runtime.bus_port import BusPort, CarryOut
from antiphon.transport.interface import TransportSettings
from antiphon.transport.memory import MemoryNetwork, MemoryTransport
from tests.unit.cluster.clusters import a_cluster

SECONDS = 20.0
SPEC = a_cluster(message_managers=2)
OTHER = replace(SPEC, hops=2)


class Stage:
    """Nodes of one cluster in one process, each with the file that it has."""

    def __init__(self) -> None:
        self._network = MemoryNetwork()

    async def line(self, name: str) -> Line:
        number = SPEC.node(name).number
        run_id = number.to_bytes(16, "little")
        settings = TransportSettings(
            node=number, cluster_id=SPEC.cluster_id, run_id=run_id, peers=SPEC.peers("a")
        )
        transport = MemoryTransport(self._network, settings)
        await transport.start()
        others = {one.number: one.name for one in SPEC.nodes if one.name != name}
        return Line(group=SPEC.group_config("a"), run_id=run_id, transport=transport, others=others)

    async def newcomer(
        self, name: str, spec: ClusterSpec = SPEC, seconds: float = SECONDS, *, voters_s: float = 0.0
    ) -> Agreement:
        """One that starts; for the first time if it waits for voters."""
        line = await self.line(name)
        card = ConfigCard(
            name=name, number=SPEC.node(name).number, digest=digest(spec), keys=essential_keys(spec)
        )
        voters = [one for one in SPEC.group_config("a").commit_servers if one != card.number]
        agreement = Agreement(replace(card, is_new=True), line.others, voters if voters_s else ())
        await ask_members(agreement, [line], seconds, voters_s=voters_s)
        return agreement

    async def at_work(
        self,
        name: str,
        answers: dict[str, object],
        silent: int = 0,
        before: Callable[[Query], Reply] | None = None,
    ) -> CarryOut:
        """A node that answers questions, but not the first few, or those with `before`. Returns its voice."""
        line = await self.line(name)
        questions = 0

        def take(events: list[InChannel]) -> None:
            nonlocal questions
            for _, event in events:
                assert isinstance(event.message, Query)
                questions += 1
                answer = answers.get(json.loads(event.message.question)["question"])
                if questions <= silent and before is not None:
                    carry_out(Send(event.sender, before(event.message)))
                if questions > silent and answer is not None:
                    said = Reply(event.message.request, About.NODE, json.dumps(answer))
                    carry_out(Send(event.sender, said))

        header = line.header(SPEC.node(name).number)
        port = BusPort(line.transport, header, take, lambda effect: None)

        def carry_out(effect: Effect) -> None:
            port.carry_out(effect)
            port.flush()

        return carry_out


def play(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            await story(Stage())

    asyncio.run(run())


def config(spec: ClusterSpec) -> dict[str, object]:
    return {"digest": digest(spec), "keys": essential_keys(spec), "is_established": True}


def test_newcomers_answer_each_other() -> None:
    async def story(stage: Stage) -> None:
        names = [node.name for node in SPEC.nodes]
        found = await asyncio.gather(
            *(stage.newcomer(name, OTHER if name == "mm-a-1" else SPEC, 1.0) for name in names)
        )
        refusals = {name: one.refusal() for name, one in zip(names, found, strict=True)}
        assert refusals["cm-1"] is None, "it has the lowest number"
        assert "is not that of cm-1; different are hops:" in str(refusals["mm-a-1"])
        assert "is not that of mm-a-1" in str(refusals["mm-a-2"])

    play(story)


def test_it_is_over_when_all_have_answered() -> None:
    async def story(stage: Stage) -> None:
        for name in ("cm-1", "mm-a-2", "w-a-1"):
            await stage.at_work(name, {"config": config(SPEC)}, silent=1)
        agreement = await stage.newcomer("mm-a-1", seconds=10 * SECONDS)
        assert agreement.unheard == []
        assert agreement.refusal() is None

    play(story)


def test_an_answer_to_a_former_life_is_none() -> None:
    """The transport brings it again. It was made for a file that was equal then, so it names no keys."""

    async def story(stage: Stage) -> None:
        asked: list[int] = []

        def repeat(query: Query) -> Reply:
            asked.append(query.request)
            same: dict[str, object] = {**config(SPEC), "keys": {}}
            return Reply(query.request - 2, About.NODE, json.dumps(same))

        await stage.at_work("mm-a-2", {"config": config(SPEC)}, silent=2, before=repeat)
        agreement = await stage.newcomer("mm-a-1", OTHER, 0.2)
        assert len(asked) == 2
        assert "is not that of mm-a-2; different are hops:" in str(agreement.refusal())

    play(story)


def test_who_does_not_answer_is_not_waited_for() -> None:
    async def story(stage: Stage) -> None:
        await stage.at_work("mm-a-2", {"config": config(OTHER)})
        agreement = await stage.newcomer("mm-a-1", seconds=0.2)
        assert agreement.unheard == [SPEC.node(name).number for name in ("cm-1", "w-a-1")]
        assert "is not that of mm-a-2; different are hops:" in str(agreement.refusal())

    play(story)


def test_who_is_there_is_waited_for_longer() -> None:
    async def story(stage: Stage) -> None:
        # It is asked several times before it answers, which takes longer than those get who are not there.
        speak = await stage.at_work("mm-a-2", {"config": config(OTHER)}, silent=4)
        asking = asyncio.ensure_future(stage.newcomer("mm-a-1", seconds=0.01))
        await asyncio.sleep(0)
        speak(Send(SPEC.node("mm-a-1").number, m.Heartbeat(1, 2, 3, 4, 5, True)))
        agreement = await asking
        assert "is not that of mm-a-2" in str(agreement.refusal())

    play(story)


def test_who_formats_a_disk_asks_for_the_history() -> None:
    async def story(stage: Stage) -> None:
        new = {**config(SPEC), "is_new": True}
        young: dict[str, object] = {"config": new, "status": {"channels": []}}
        old: dict[str, object] = {"config": new, "status": {"channels": [{"name": "a", "committed": 3}]}}
        for name, answers in (("cm-1", young), ("mm-a-2", young), ("w-a-1", old)):
            await stage.at_work(name, answers)
        agreement = await stage.newcomer("mm-a-1", seconds=10 * SECONDS, voters_s=10 * SECONDS)
        assert agreement.has_history

    play(story)


def test_nodes_that_start_for_the_first_time_wait_for_each_other_and_for_nobody_else() -> None:
    async def story(stage: Stage) -> None:
        voters = ("mm-a-1", "mm-a-2", "w-a-1")
        asked = [stage.newcomer(name, seconds=0.01, voters_s=10 * SECONDS) for name in voters]
        found = await asyncio.gather(*asked)
        assert [one.unsettled for one in found] == [[], [], []]
        assert not any(one.has_history for one in found)

    play(story)


def test_a_voter_that_is_away_stays_unsettled() -> None:
    async def story(stage: Stage) -> None:
        asked = [stage.newcomer(name, seconds=0.01, voters_s=0.2) for name in ("mm-a-1", "mm-a-2")]
        for one in await asyncio.gather(*asked):
            assert one.unsettled == [SPEC.node("w-a-1").number]

    play(story)
