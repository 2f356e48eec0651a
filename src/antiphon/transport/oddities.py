"""Oddities: what should not arrive is counted each time; what an operator can act upon is logged, once for
each kind and member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from antiphon.transport.interface import NOBODY, Counters

WRONG_KEY: Final = "wrong_key"
OTHER_CLUSTER: Final = "other_cluster"
GARBAGE: Final = "garbage"
REPLAYS: Final = "replays"
UNPROVEN: Final = "unproven"

_WORDS: Final = {
    WRONG_KEY: "a datagram was not sealed with a key of this group",
    OTHER_CLUSTER: "a datagram of another cluster arrived; do the two share a multicast group?",
    GARBAGE: "something arrived that is no datagram of ours",
    REPLAYS: "a datagram came again, or of a run that is over: perhaps somebody plays back a recording",
    UNPROVEN: "a second run beside one that is alive proved nothing: perhaps somebody plays back a recording",
}

_logger = logging.getLogger("antiphon.transport")


class Oddities:
    """The counters of all members, and who was complained about."""

    def __init__(
        self,
        counters: Mapping[int | None, Counters],
        names: Mapping[int, str],
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._counters = counters
        self._names = names
        self._log = log or _logger.warning
        self._logged: dict[tuple[str, int | None], None] = {}

    def note(self, kind: str, claimed: int | None, words: str = "", *, is_usual: bool = False) -> None:
        """Something of this kind came, and says that it comes from this member.

        What is usual, where datagrams are repaired for others and processes end, is counted and not logged.
        """
        counters = self._counters.get(claimed) or self._counters[NOBODY]
        setattr(counters, kind, getattr(counters, kind) + 1)
        words = "" if is_usual else words or _WORDS.get(kind, "")
        who = claimed if claimed in self._counters else NOBODY
        if words and (words, who) not in self._logged:
            self._logged[words, who] = None
            source = "from nobody we know" if who is NOBODY else f"in the name of {self._names[who]}"
            self._log(f"{words} ({source}; said once, counted from now on)")
