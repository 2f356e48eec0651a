"""Faults: a network that loses, doubles, delays and cuts, by rules and a seed.

    sockets  ->  FAULTS  ->  link          (what arrives, by sender; for `memory`, whole frames)

The layer sits with the receiver: so a multicast can be lost by some members and received by others, and a
rule for one direction of a pair is enough for a one-way partition. All members may read the same rules.

Rules in words, one to a line or separated by semicolons; where several match, the last one counts:

    seed=7                                              which losses, not how many
    drop=0.3 duplicate=0.1 reorder=0.2 delay=5..20      for all pairs; probabilities, and milliseconds
    1>2 drop=0.5                                        from member 1 to member 2
    1-3 cut                                             nothing between 1 and 3, either way
    *>4 cut                                             nobody reaches 4, though 4 reaches the others
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, field, replace
from typing import Final

from antiphon.bus.chance import Chance
from antiphon.errors import LocalError

_MS: Final = 1_000_000
_REORDER_NS: Final = 5 * _MS
_LATE_MAX: Final = 10_000
_PRECISION: Final = 1_000_000

_PAIR = re.compile(r"(\d+|\*)([->])(\d+|\*)")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(?:\.\.(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to datagrams between two members."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ms: tuple[float, float] = (0.0, 0.0)


NONE: Final = Fault()
CUT: Final = Fault(drop=1.0)


@dataclass(frozen=True, slots=True)
class FaultRules:
    """Faults by pair of members; None stands for any."""

    rules: tuple[tuple[int | None, int | None, Fault], ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> FaultRules:
        """Parse the rules; `LocalError` says what is wrong with them."""
        rules: list[tuple[int | None, int | None, Fault]] = []
        seed = 0
        for line in re.split(r"[;\n]", text):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if words[0].startswith("seed="):
                seed = _number(words.pop(0)[len("seed=") :])
                if not words:
                    continue
            pairs: list[tuple[int | None, int | None]] = [(None, None)]
            if found := _PAIR.fullmatch(words[0]):
                one, how, other = found.groups()
                pairs = [(_node(one), _node(other))]
                if how == "-":
                    pairs.append((_node(other), _node(one)))
                words = words[1:]
            fault = _fault(words)
            rules += [(sender, receiver, fault) for sender, receiver in pairs]
        return cls(tuple(rules), seed)

    def between(self, sender: int, receiver: int) -> Fault:
        """The fault for datagrams from `sender` to `receiver`."""
        for one, other, fault in reversed(self.rules):
            if one in (None, sender) and other in (None, receiver):
                return fault
        return NONE

    def cut(self, *pairs: tuple[int, int]) -> FaultRules:
        """These rules, and nothing from the first to the second of each pair."""
        return replace(self, rules=(*self.rules, *((one, other, CUT) for one, other in pairs)))


def _fault(words: list[str]) -> Fault:
    if words == ["cut"]:
        return CUT
    if not words:
        raise LocalError("a fault rule says nothing; say drop=0.1, or cut")
    fault = NONE
    for word in words:
        name, _, value = word.partition("=")
        if name == "delay" and (found := _DELAY.fullmatch(value)):
            low = float(found[1])
            fault = replace(fault, delay_ms=(low, max(low, float(found[2] or low))))
        elif name == "drop":
            fault = replace(fault, drop=_probability(value))
        elif name == "duplicate":
            fault = replace(fault, duplicate=_probability(value))
        elif name == "reorder":
            fault = replace(fault, reorder=_probability(value))
        else:
            raise LocalError(
                f"{word!r} is no fault; there are drop=, duplicate=, reorder=, delay=, cut, seed="
            )
    return fault


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise LocalError(f"{text!r} is no probability; they go from 0 to 1")
    return value


def _number(text: str) -> int:
    if not text.isdecimal():
        raise LocalError(f"{text!r} is no number")
    return int(text)


def _node(text: str) -> int | None:
    return None if text == "*" else int(text)


@dataclass(slots=True)
class FaultLayer:
    """What arrives at one member, and when, under rules that may change at any time."""

    node: int
    rules: FaultRules = field(default_factory=FaultRules)
    next_ns: int | None = None
    """When a delayed datagram is due."""
    _seed: int | None = None
    _chance: Chance = field(default_factory=lambda: Chance(0))
    _late: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    _overtaken: dict[int, list[bytes]] = field(default_factory=dict)
    _count: int = 0

    def arrive(self, now_ns: int, sender: int, data: bytes) -> list[bytes]:
        """Take a datagram of the sender; returns what arrives now, of it and of those before it."""
        if self._seed != self.rules.seed:
            self._seed = self.rules.seed
            self._chance = Chance.of(b"faults", b"%d %d" % (self.rules.seed, self.node))
        fault = self.rules.between(sender, self.node)
        if fault is NONE:
            return [data, *self._overtaken.pop(sender, ())]
        if self._happens(fault.drop):
            return []
        arrived: list[bytes] = []
        for _ in range(2 if self._happens(fault.duplicate) else 1):
            low, high = (int(ms * _MS) for ms in fault.delay_ms)
            delay_ns = low + (self._chance.below(high - low) if high > low else 0)
            if delay_ns:
                self._hold(now_ns + delay_ns, sender, data)
            elif self._happens(fault.reorder):
                self._overtaken.setdefault(sender, []).append(data)
                self._hold(now_ns + _REORDER_NS, sender, b"")
            else:
                arrived.append(data)
                arrived += self._overtaken.pop(sender, ())
        return arrived

    def due(self, now_ns: int) -> list[tuple[int, bytes]]:
        """The datagrams that were held back long enough, with their senders."""
        found: list[tuple[int, bytes]] = []
        while self._late and self._late[0][0] <= now_ns:
            _, _, sender, data = heapq.heappop(self._late)
            if data:
                found.append((sender, data))
            else:
                # No later datagram came to overtake these.
                found += [(sender, held) for held in self._overtaken.pop(sender, ())]
        self.next_ns = self._late[0][0] if self._late else None
        return found

    def _hold(self, until_ns: int, sender: int, data: bytes) -> None:
        if len(self._late) >= _LATE_MAX:
            return
        self._count += 1
        heapq.heappush(self._late, (until_ns, self._count, sender, data))
        self.next_ns = self._late[0][0]

    def _happens(self, probability: float) -> bool:
        return probability > 0.0 and self._chance.below(_PRECISION) < probability * _PRECISION
