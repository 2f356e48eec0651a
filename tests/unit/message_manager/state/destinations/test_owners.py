"""Owners: of which topic a number is, whatever joined and went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.state.destinations import owners as module
from antiphon.message_manager.state.destinations.owners import OwnedRun, Owners
from antiphon.ranges import Ranges

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "join", "go"]), st.integers(1, 4), st.integers(0, 30)),
    max_size=40,
)


@given(STEPS)
def test_the_rows_against_a_dict(steps: list[tuple[str, int, int]]) -> None:
    """Numbers are given out in turn; some are added at once, the others join later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SPARE", 0)
        owners, live, known, later, last = Owners(), Ranges(), dict[int, int](), dict[int, int](), 0
        for what, count, where in steps:
            if what == "add":
                numbers = range(last + 1, last + 1 + count)
                last += count
                topic = where % 4
                if topic == 3:
                    later.update(dict.fromkeys(numbers, topic))
                    continue
                live.add(numbers.start, numbers.stop)
                owners.add(topic, numbers.start, numbers.stop)
                known.update(dict.fromkeys(numbers, topic))
            elif what == "join":
                runs = [OwnedRun(number, number + 1, topic) for number, topic in later.items()]
                owners.join(runs, live)
                live.add_all(Ranges([(run.start, run.stop) for run in runs]))
                known |= later
                later = {}
            elif known:
                topic = known[sorted(known)[where % len(known)]]
                gone = [number for number, of in known.items() if of == topic][:count]
                for number in gone:
                    del known[number]
                live.remove_all(Ranges.of_numbers(sorted(gone)))
                owners.let_go(Ranges.of_numbers(sorted(gone)), live)
            assert {number: owners.of(number) for number in live.numbers()} == known
            assert {n: run.topic for run in owners.living(live) for n in range(run.start, run.stop)} == known
            sorted_out = owners.sort_out(live)
            assert {n: topic for topic, some in sorted_out.items() for n in some.numbers()} == known
            assert len(list(owners)) <= 2 * len(known) + 1, "rows of messages that are gone go, too"


def test_runs_that_touch_are_one_row() -> None:
    owners = Owners()
    owners.add(7, 10, 12)
    owners.add(7, 12, 15)
    owners.add(8, 15, 16)
    owners.add(7, 17, 18)
    assert list(owners) == [(10, 15, 7), (15, 16, 8), (17, 18, 7)]
