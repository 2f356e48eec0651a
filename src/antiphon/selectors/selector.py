"""Selector: a compiled condition on messages.

SEL1  A selector depends on its text only; equal texts compile to one object while it is remembered.
SEL2  A message matches when the condition is true; unknown is not true.
SEL3  The time for rows is at most in proportion to rows and `cost`, whatever the text and the messages.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import compress
from typing import Final

from antiphon.batch import Batch
from antiphon.errors import InvalidSelector
from antiphon.ranges import Ranges
from antiphon.selectors.conditions import Condition
from antiphon.selectors.parser import parse
from antiphon.selectors.rows import RowValues
from antiphon.selectors.tokens import SPACES
from antiphon.selectors.vectors import unpack_rows

_COMPILED_MAX: Final = 256


class Selector:
    """A condition on messages; a blank one is true for all.

    >>> region = compile_selector("region = 'EU' AND JMSPriority >= 4")
    >>> region.match_rows(batch, 0, batch.count, channel="a")
    Ranges([(0, 3), (7, 8)])
    """

    __slots__ = ("_condition", "cost", "text")

    def __init__(self, text: str, condition: Condition | None, cost: int) -> None:
        self.text = text
        self._condition = condition
        self.cost = cost

    def matches(self, batch: Batch, row: int, channel: str) -> bool:
        """Whether one message of a channel matches."""
        return bool(self.match_rows(batch, row, row + 1, channel))

    def match_rows(self, batch: Batch, start: int, stop: int, channel: str, first: int = 0) -> Ranges:
        """Those of the rows `[start, stop)` that match; row 0 of the batch is told as `first`."""
        if self._condition is None:
            return Ranges([(first + start, first + stop)])
        rows = RowValues(batch, start, stop, channel)
        true = self._condition.truth(rows).true
        if not true:
            return Ranges()
        if true == rows.everything:
            return Ranges([(first + start, first + stop)])
        # A row that matches next to one that does not is an edge of a range.
        edges = unpack_rows(true ^ true << 1, rows.count + 1)
        return Ranges.of_edges(list(compress(range(first + start, first + stop + 1), edges)))

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(text: str) -> Selector:
    if SPACES.fullmatch(text) or not text:
        return Selector("", None, 1)
    parsed = parse(text)
    return Selector(text, parsed.condition, parsed.parts)


def compile_selector(text: str | None) -> Selector:
    """Compile a selector; raise InvalidSelector, which shows the place. None and blank text match all."""
    if text is None:
        return _compiled("")
    if not isinstance(text, str):
        raise InvalidSelector(f"a selector is of type {type(text).__name__}, not str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSelector.at(text, error.start, "characters that UTF-8 can express") from None
    return _compiled(text)
