"""BusDesk: takes commands for a bus member by lines of text, submits load, and answers in JSON.

    status                                              how the member stands
    load seconds=2 messages=220 size=256                submit envelopes, as fast as they are confirmed
    load envelopes=500 messages=1 size=256 rate=100     so many, and so many a second
    load … list=1                                       answer with the places too: [number, first, count]
    wait applied=1234 epoch=7                           answer when all of these have been reached

Each answer is one line, with the number of the line that it answers as `to`; answers may overtake each
other. For tests and the bench.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Final

from antiphon.bus import effects as bus
from antiphon.wire.commands import NUMBER_AT, publish_buffers

AHEAD_BYTES: Final = 4 << 20
"""What waits at most: the producer's window, and enough behind it that it never runs dry."""

WEIGHT_MIN: Final = 1_280
PACE_SECONDS: Final = 0.005


class Load:
    """Envelopes that are submitted one after the other, and what became of them."""

    def __init__(self, to: int, options: dict[str, int], now_ns: int) -> None:
        self.to = to
        self.messages = options.get("messages", 1)
        self.size = options.get("size", 256)
        self.rate = options.get("rate", 0)
        self.begun_ns = now_ns
        self.end_ns = now_ns + options["seconds"] * 1_000_000_000 if "seconds" in options else None
        self.left = options.get("envelopes", 1 << 62)
        self.submitted = 0
        self.under_way = 0
        self.delays_ns: list[int] = []
        self.confirmed_ns = now_ns
        self.uncertain = 0
        self.places: list[tuple[int, int, int]] | None = [] if options.get("list") else None
        weight = max(WEIGHT_MIN, self.messages * self.size)
        self._ahead = max(2, AHEAD_BYTES // weight)
        self._command = (b"", b"")

    def due(self, now_ns: int) -> int:
        """How many to submit now."""
        if self.end_ns is not None and now_ns >= self.end_ns:
            self.left = 0
        due = min(self.left, self._ahead - self.under_way)
        if self.rate:
            due = min(due, (now_ns - self.begun_ns) * self.rate // 1_000_000_000 - self.submitted)
        return max(0, due)

    def command(self, session: int, number: int, bodies: bytes) -> bytes:
        """The publish of one envelope; nobody looks at what its bodies say."""
        before, behind = self._command
        if not before:
            # All but the number is the same each time, and made once: it is not what is measured.
            size = self.messages * self.size
            body = bodies[:size] if size <= len(bodies) else bytes(size)
            whole = b"".join(publish_buffers(session, 1, number, 0, 1, 1, [body], self.messages))
            self._command = before, behind = whole[:NUMBER_AT], whole[NUMBER_AT + 8 :]
        return b"".join((before, number.to_bytes(8, "little"), behind))

    @property
    def is_over(self) -> bool:
        return not self.left and not self.under_way

    def result(self) -> dict[str, Any]:
        seconds = max(1e-9, (self.confirmed_ns - self.begun_ns) / 1e9)
        delays = sorted(self.delays_ns)
        result: dict[str, Any] = {
            "envelopes": len(delays),
            "messages": len(delays) * self.messages,
            "seconds": seconds,
            "rate": len(delays) * self.messages / seconds,
            "uncertain": self.uncertain,
        }
        if delays:
            result["latency_ms"] = {
                "p50": delays[len(delays) // 2] / 1e6,
                "p99": delays[len(delays) * 99 // 100] / 1e6,
                "max": delays[-1] / 1e6,
            }
        if self.places is not None:
            result["places"] = self.places
        return result


class BusDesk:
    """Whoever asks for something to be ordered, and is told when it is."""

    def __init__(
        self,
        node: int,
        submit: Callable[[list[bus.Submitted]], None],
        status: Callable[[], dict[str, Any]],
        figures: Callable[[], dict[str, int]],
        say: Callable[[str], None],
    ) -> None:
        self._submit = submit
        self._status = status
        self._figures = figures
        self._say = say
        self._loop = asyncio.get_running_loop()
        chance = random.Random()
        self._session = node << 64 | chance.getrandbits(48)
        self._bodies = chance.randbytes(1 << 16)
        self._lines = 0
        self._tags = 0
        self._number = 1
        self._loads: list[Load] = []
        # Of what is not confirmed, by tag: whose it is, when it was submitted, and its number.
        self._under_way: dict[int, tuple[Load, int, int]] = {}
        self._waiting: list[tuple[int, dict[str, int]]] = []
        self._is_scheduled = False
        self._pacing: asyncio.TimerHandle | None = None

    @property
    def session(self) -> int:
        """All that is submitted here is of this session, under running numbers."""
        return self._session

    def take_line(self, line: str) -> None:
        """One command; what makes no sense is answered with an error."""
        self._lines += 1
        try:
            word, *options = line.split()
            given = {name: int(value) for name, _, value in (one.partition("=") for one in options)}
            if word == "status":
                self._answer(self._lines, "status", self._status())
            elif word == "wait":
                if unknown := sorted(set(given) - set(self._figures())):
                    raise ValueError(f"nobody here knows of {', '.join(unknown)}")
                self._waiting.append((self._lines, given))
                self.look()
            elif word == "load" and ("seconds" in given or "envelopes" in given):
                self._loads.append(Load(self._lines, given, monotonic_ns()))
                self._go_on()
            else:
                raise ValueError(f"{line.strip()!r} is no command")
        except ValueError as error:
            self._answer(self._lines, "error", str(error))

    def carry_out(self, effect: bus.Effect) -> None:
        """The producer says what became of an envelope."""
        if type(effect) is bus.EnvelopeConfirmed:
            tag, first, count, _ = effect
            load, sent_ns, number = self._under_way.pop(tag)
            load.under_way -= 1
            load.confirmed_ns = now_ns = monotonic_ns()
            load.delays_ns.append(now_ns - sent_ns)
            if load.places is not None:
                load.places.append((number, first, count))
            if not self._is_scheduled:
                # Not in the middle of a step.
                self._is_scheduled = True
                self._loop.call_soon(self._go_on)
        elif type(effect) is bus.EnvelopeUncertain:
            self._under_way[effect.tag][0].uncertain += 1
        else:
            raise AssertionError(f"{type(effect).__name__} is not for the desk")

    def look(self) -> None:
        """A step is over: has something been reached for which somebody waits?"""
        if self._waiting:
            figures = self._figures()
            for one in list(self._waiting):
                to, wanted = one
                if all(figures[name] >= least for name, least in wanted.items()):
                    self._waiting.remove(one)
                    self._answer(to, "reached", {name: figures[name] for name in wanted})

    def _go_on(self) -> None:
        self._is_scheduled = False
        now_ns = monotonic_ns()
        events: list[bus.Submitted] = []
        for load in list(self._loads):
            for _ in range(load.due(now_ns)):
                events.append(self._envelope(load, now_ns))
            if load.is_over:
                self._loads.remove(load)
                self._answer(load.to, "load", load.result())
        if events:
            self._submit(events)
        if self._pacing is None and any(load.rate or load.end_ns for load in self._loads):
            self._pacing = self._loop.call_later(PACE_SECONDS, self._on_pace)

    def _on_pace(self) -> None:
        self._pacing = None
        self._go_on()

    def _envelope(self, load: Load, now_ns: int) -> bus.Submitted:
        self._tags += 1
        tag, number = self._tags, self._number
        self._number += load.messages
        load.left -= 1
        load.submitted += 1
        load.under_way += 1
        self._under_way[tag] = (load, now_ns, number)
        return bus.Submitted(tag, load.command(self._session, number, self._bodies), load.messages)

    def _answer(self, to: int, word: str, what: Any) -> None:
        self._say(json.dumps({"to": to, word: what}))
