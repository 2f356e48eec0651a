"""RefusingTally: an application of the bus that refuses some numbers.

The refused numbers are a function of the number alone, so that a checker knows every envelope's outcome.
Refusals are kept in the table of the message manager, which forgets.
"""

from __future__ import annotations

from antiphon.bus.messages import Applied, Entry, EntryKind
from antiphon.journal.ports import Buffer
from antiphon.message_manager.state.outcomes import Outcomes
from antiphon.sim.bus.tally import STATE_BYTES, Tally
from antiphon.wire.commands import Outcome, OutcomeCode
from antiphon.wire.primitives import Reader, Writer


def refusals(first: int, count: int, one_in: int) -> tuple[Outcome, ...]:
    """The outcomes of these numbers, if one in `one_in` fails; 0: none does."""
    if not one_in:
        return ()
    return tuple(
        [Outcome(n, 1, OutcomeCode.REFUSED, 0, "") for n in range(first, first + count) if n % one_in == 0]
    )


class RefusingTally(Tally):
    """Refuses one number of an envelope in `one_in`."""

    def __init__(self, node: int, one_in: int) -> None:
        super().__init__(node)
        self._one_in = one_in
        self._outcomes = Outcomes()

    def apply(self, entry: Entry, payload: memoryview | None) -> None:
        super().apply(entry, payload)
        if entry.kind is EntryKind.DATA:
            for outcome in refusals(entry.first, entry.count, self._one_in):
                self._outcomes.note(outcome)

    def _applied_after(self, after: int) -> Applied:
        after, upto, exceptions = self._outcomes.page(after, self.applied)
        return Applied(self.term, upto, exceptions, after, self._outcomes.floor)

    def capture(self, n: int) -> tuple[bytes, bytes]:
        digest, state = super().capture(n)
        writer = Writer()
        self._outcomes.write(writer)
        return digest, state + writer.join()

    def restore(self, state: Buffer) -> None:
        super().restore(state)
        self._outcomes = Outcomes.read(Reader(memoryview(state)[STATE_BYTES:]))
