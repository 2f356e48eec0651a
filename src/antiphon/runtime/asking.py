"""Asking: the questions of a node to its members before it starts (`cluster/agreement.py`).

A member that does not answer is asked again, for connections are made in these very moments. Questions of
other members are answered meanwhile. Then the node takes the transport.

The transport may bring an answer to the node's former life again, and the answer may be untrue by now. Every
life therefore numbers its questions anew, and takes only answers with its own numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.bus import effects as bus
from antiphon.bus.codec import Header
from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.bus.messages import About, Query, Reply
from antiphon.cluster.agreement import HISTORY_QUESTION, Agreement
from antiphon.node import InChannel
from antiphon.runtime.bus_port import BusPort
from antiphon.transport.interface import Transport

ASK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A channel of the node, with its transport."""

    group: GroupConfig
    run_id: bytes
    transport: Transport
    others: Mapping[int, str]

    def header(self, node: int, disk_id: bytes = NO_DISK) -> Header:
        return Header(self.group.group, self.group.config_id, node, self.run_id, disk_id)


class _Asker:
    def __init__(self, agreement: Agreement, lines: Sequence[Line]) -> None:
        self.agreement = agreement
        self.changed = asyncio.Event()
        self._config = int.from_bytes(lines[0].run_id[:7], "little") << 1
        self._history = self._config + 1
        self._questions = {self._config: agreement.question}
        if agreement.unsettled:
            self._questions[self._history] = HISTORY_QUESTION
        self._lines = lines
        self._ports = {
            line.group.group: BusPort(
                line.transport, line.header(agreement.card.number), self._take, lambda effect: None
            )
            for line in lines
        }

    def is_there(self, node: int) -> bool:
        """Whether this member has sent anything since the sockets were opened."""
        for line in self._lines:
            counters = line.transport.counters().get(node)
            if counters is not None and counters.frames:
                return True
        return False

    def ask(self, *members: int) -> None:
        """Ask every member that has not answered, or those of `members`, on one of its lines."""
        left = set(self.agreement.awaited).intersection(members or self.agreement.awaited)
        for line in self._lines:
            port = self._ports[line.group.group]
            for node in sorted(left.intersection(line.others)):
                left.remove(node)
                for request, question in self._questions.items():
                    port.carry_out(bus.Send(node, Query(request, About.NODE, question)))
            port.flush()

    def _take(self, events: list[InChannel]) -> None:
        for channel, event in events:
            message = event.message
            if isinstance(message, Query):
                answer = self.agreement.reply(message.question)
                if answer is not None:
                    # The answer may be the last that the member waits for: our question must come before it.
                    self.ask(event.sender)
                    said = Reply(message.request, About.NODE, answer)
                    port = self._ports[channel]
                    port.carry_out(bus.Send(event.sender, said))
                    port.flush()
            elif isinstance(message, Reply):
                self._hear(event.sender, message)

    def _hear(self, sender: int, message: Reply) -> None:
        if message.request == self._config:
            self.agreement.take(sender, message.answer)
        elif message.request == self._history:
            self.agreement.take_history(sender, message.answer)
        self.changed.set()


async def ask_members(
    agreement: Agreement, lines: Sequence[Line], seconds: float, *, voters_s: float = 0.0
) -> None:
    """Ask all members until all have answered or the time is over (`Agreement.is_worth_waiting`)."""
    asker = _Asker(agreement, lines)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while agreement.is_worth_waiting(loop.time() - began_s, seconds, voters_s, asker.is_there):
        asker.ask()
        try:
            async with asyncio.timeout(ASK_SECONDS):
                while agreement.awaited:
                    asker.changed.clear()
                    await asker.changed.wait()
        except TimeoutError:
            continue
