"""The world: virtual time, one order, and chance from one seed."""

from __future__ import annotations

import pytest

from antiphon.sim.world import (
    MICROSECOND_NS,
    SECOND_NS,
    NodeClock,
    Violation,
    World,
    child_random,
)


def test_what_happens_at_one_instant_happens_in_the_order_in_which_it_was_planned() -> None:
    world = World(1)
    seen: list[str] = []
    for name in ("first", "second", "third"):
        world.after(5, lambda name=name: seen.append(name))
    world.after(1, lambda: seen.append("before"))

    world.run(10)

    assert seen == ["before", "first", "second", "third"]
    assert world.now_ns == 10


def test_a_cancelled_timer_does_nothing() -> None:
    world = World(1)
    world.after(1, lambda: seen.append(1)).cancel()
    seen: list[int] = []

    world.run(10)

    assert seen == []


def test_a_run_stops_as_soon_as_it_is_done() -> None:
    world = World(1)
    seen: list[int] = []
    for at in (1, 2, 3):
        world.after(at, lambda at=at: seen.append(at))

    assert world.run(10, lambda: len(seen) == 2)
    assert seen == [1, 2]


def repeat(world: World, every_ns: int) -> None:
    world.after(every_ns, lambda: repeat(world, every_ns))


def test_clients_that_ask_all_the_time_do_not_go_in_circles() -> None:
    world = World(1)
    repeat(world, 50 * MICROSECOND_NS)

    world.run(20 * SECOND_NS)

    assert world.events == 400_000


def test_events_while_time_hardly_passes_go_in_circles() -> None:
    world = World(1)
    world.run(SECOND_NS)
    repeat(world, 1)

    with pytest.raises(Violation, match="goes in circles"):
        world.run(2 * SECOND_NS)


def test_the_parts_of_a_run_draw_from_sources_of_their_own() -> None:
    disk, network = child_random(7, "disk"), child_random(7, "network")

    assert [disk.random() for _ in range(3)] != [network.random() for _ in range(3)]
    assert child_random(7, "disk").random() == child_random(7, "disk").random()
    # A fixed figure: whoever changes the derivation renames every seed that anybody wrote down.
    assert child_random(7, "disk").randrange(1_000_000) == 829255


def test_a_clock_that_goes_wrong_still_meets_its_deadlines() -> None:
    world = World(3)
    clock = NodeClock(world, world.random("clock"))
    clock.make_unsteady()
    deadline = clock.now_ns() + 1_000_000

    world.run(clock.delay_until(deadline))

    assert deadline <= clock.now_ns() <= deadline + 2


@pytest.mark.parametrize(("is_idle", "steps"), [(True, 200), (False, 1_000)])
def test_a_deadline_that_has_passed_after_every_step_is_a_busy_loop(is_idle: bool, steps: int) -> None:
    world = World(3)
    clock = NodeClock(world, world.random("clock"))
    for following_ns in (clock.now_ns() + 1, None):
        for _ in range(steps):
            clock.look_at("node 1", clock.now_ns() - 5, is_idle=is_idle)
        # A machine may leave work to the next steps; then it waits.
        clock.look_at("node 1", following_ns, is_idle=is_idle)
    for _ in range(steps):
        clock.look_at("node 1", clock.now_ns(), is_idle=is_idle)

    with pytest.raises(Violation, match="node 1 steps without a pause"):
        clock.look_at("node 1", clock.now_ns(), is_idle=is_idle)
