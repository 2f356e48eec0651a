"""The world: virtual time, one order, and chance from one seed."""

from __future__ import annotations

from antiphon.sim.world import NodeClock, World, child_random


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
