"""A node that comes back applies its own claim again, and is not the primary of that term.

Its consumers, and the numbers of what it delivered to them, ended with the life that claimed the term. Client
managers that have heard of no other term still take it for the primary: what it said to them would be taken
for the rest of what its former life had said.

Found by: antiphon sim cluster --seed 3361
"""

from __future__ import annotations

from tests.nodes import Cluster


def test_a_node_that_comes_back_serves_only_in_a_term_that_it_claimed_in_this_life() -> None:
    cluster = Cluster(seed=5, nodes=1)
    assert cluster.run_ms(2_000, lambda: cluster.leader() == 1)
    former = cluster.lives[1].manager.term
    cluster.run_ms(100)
    cluster.stop(1)

    life = cluster.start(1)
    seen: list[tuple[int, bool]] = []
    apply = life.manager.apply

    def watched(*entry: object) -> None:
        # What the one before has led to: the machines have settled since.
        seen.append((life.manager.term, life.manager.is_primary))
        apply(*entry)  # type: ignore[arg-type]

    life.manager.apply = watched  # type: ignore[method-assign]
    assert cluster.run_ms(2_000, lambda: cluster.leader() == 1)
    assert (former, False) in seen, "the former claim was applied, and nobody served"
    assert (former, True) not in seen
    assert life.manager.is_primary and life.manager.term > former
