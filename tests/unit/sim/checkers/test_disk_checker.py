"""I24: a node keeps its disk, and who refuses to start changes nothing."""

from __future__ import annotations

import pytest

from antiphon.sim.checkers.cluster import SameDisks
from antiphon.sim.world import Violation, World

OLD, NEW = b"the first disk  ", b"the second disk "


@pytest.fixture
def checker() -> SameDisks:
    checker = SameDisks(World(1))
    checker.on_opened(1, OLD, 0)
    return checker


def test_a_node_may_begin_with_its_disk_as_often_as_it_likes(checker: SameDisks) -> None:
    checker.on_opened(1, OLD, 0)
    checker.on_opened(2, NEW, 0)
    checker.on_refused(1, False)


def test_a_node_that_begins_with_another_disk_has_given_up_its_own(checker: SameDisks) -> None:
    with pytest.raises(Violation, match="node 1 gave up its disk"):
        checker.on_opened(1, NEW, 0)


def test_a_disk_that_was_replaced_is_not_missed(checker: SameDisks) -> None:
    checker.on_replaced(1)
    checker.on_opened(1, NEW, 3)

    with pytest.raises(Violation, match="node 1 gave up its disk"):
        checker.on_opened(1, OLD, 3)


def test_a_disk_that_was_replaced_does_not_come_back(checker: SameDisks) -> None:
    checker.on_replaced(1)
    with pytest.raises(Violation, match="node 1 begins anew under the id"):
        checker.on_opened(1, OLD, 3)


def test_files_of_a_whole_disk_are_not_put_aside(checker: SameDisks) -> None:
    with pytest.raises(Violation, match="node 1 put 3 files"):
        checker.on_opened(1, OLD, 3)


def test_a_refusal_changes_nothing(checker: SameDisks) -> None:
    with pytest.raises(Violation, match="node 1 refused to start and changed"):
        checker.on_refused(1, True)
