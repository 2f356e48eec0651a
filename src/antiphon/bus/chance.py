"""Chance: delays that differ between nodes and are the same in every replay; safety never rests on them.

A generator of our own keeps the bus free of the `random` module, and its state small enough to print:
splitmix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1


class Chance:
    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    @classmethod
    def of(cls, *parts: bytes) -> Chance:
        """A source with a seed of these bytes: a run id, a group, a role."""
        digest = blake2b(b"\0".join(parts), digest_size=8).digest()
        return cls(int.from_bytes(digest, "little"))

    def below(self, bound: int) -> int:
        assert bound > 0, "nothing can be drawn below zero"
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
        return (z ^ z >> 31) % bound

    def one_of(self, choices: tuple[int, ...]) -> int:
        return choices[self.below(len(choices))]
