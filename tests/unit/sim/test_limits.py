"""The limits of a run: drawn from its seed, in force while it lasts."""

from __future__ import annotations

from importlib import import_module

from antiphon.message_manager.state import outcomes
from antiphon.sim import limits
from antiphon.sim.groups import group_of


def test_every_limit_is_a_number_of_its_module_and_is_drawn_smaller_than_it_is() -> None:
    for limit in limits.LIMITS.values():
        usual = getattr(import_module(f"antiphon.{limit.module}"), limit.name)
        assert all(choice < usual for choice in limit.choices), limit


def test_limits_hold_while_a_run_lasts_and_not_longer() -> None:
    usual = outcomes.OUTCOMES_MAX
    with limits.drawn(1, "doubt") as drawn:
        assert outcomes.OUTCOMES_MAX == drawn["outcomes"] < usual
    assert usual == outcomes.OUTCOMES_MAX


def test_a_seed_draws_the_same_every_time_and_each_limit_is_drawn_by_some() -> None:
    seen: set[str] = set()
    for seed in range(200):
        with limits.drawn(seed) as drawn, limits.drawn(seed) as again:
            assert drawn == again
            seen |= set(drawn)
    assert seen == set(limits.LIMITS)
    assert {name for seed in range(200) for name in limits.sizes(seed)} == set(limits.SIZES)


def test_only_groups_with_a_witness_draw_fewer_copies_and_named_profiles_draw_none() -> None:
    drawn = [limits.copies(seed) for seed in range(50)]
    assert drawn == [limits.copies(seed) for seed in range(50)]
    for name, choices in limits.COPIES.items():
        assert {one[name] for one in drawn} == set(choices)
    assert limits.copies(1, "doubt") == {}
    for shape, least in (("witness", 1), ("three", 0)):
        group = group_of("a", shape, (1, 2, 3), (), lambda: bytes(16), min_copies=1, copies_silence_ms=60)
        assert (group.min_copies, group.copies_silence_ms) == (least, 60)
