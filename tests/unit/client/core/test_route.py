"""Which server is tried next, and when."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from antiphon.client.core.route import (
    PAUSE_NS_MAX,
    PAUSE_NS_MIN,
    PAUSE_NS_SHORT,
    STEADY_NS,
    Route,
    Server,
    in_drawn_order,
    read_servers,
)

A, B, C = Server("a", 1), Server("b", 2), Server("c", 3)
SECOND_NS = 1_000_000_000


def lost_at(now_ns: int, *servers: Server, chance: float = 1.0) -> Route:
    route = Route(servers, lambda: chance)
    route.reached(0, servers[0])
    route.lost(now_ns)
    return route


def attempts(route: Route, count: int) -> list[tuple[Server, int]]:
    """Attempts that all fail at once: whom, and how long after the one before."""
    made = []
    now_ns = route.lost_ns
    for _ in range(count):
        server, at_ns = route.next()
        made.append((server, at_ns - now_ns))
        now_ns = max(now_ns, at_ns)
        route.failed(now_ns, "refused")
    return made


def test_the_lost_server_is_tried_first_and_at_once_then_the_others_in_order() -> None:
    route = Route([A, B, C], lambda: 1.0)
    route.reached(0, B)
    route.lost(7)
    assert attempts(route, 3) == [(B, 0), (C, 0), (A, 0)]


def test_clients_draw_the_order_of_the_servers() -> None:
    begun = [in_drawn_order([A, B, C], lambda drawn=drawn: drawn) for drawn in (0.0, 0.33, 0.34, 0.67, 1.0)]
    assert begun == [[A, B, C], [A, B, C], [B, A, C], [C, B, A], [C, B, A]]


@pytest.mark.parametrize("seed", range(5))
def test_clients_spread_over_the_servers_and_those_of_a_lost_one_over_the_others(seed: int) -> None:
    """With a drawn beginning and one order for all, every client of a lost server went to the next one."""
    chance = random.Random(seed).random
    routes = [Route(in_drawn_order([A, B, C], chance), chance) for _ in range(300)]
    begun = Counter(route.servers[0] for route in routes)
    assert min(begun[server] for server in (A, B, C)) > 70, f"seed {seed}: {begun}"
    moved: Counter[Server] = Counter()
    for route in routes:
        route.reached(0, route.servers[0])
        if route.current == A:
            route.lost(1)
            route.failed(1, "refused")
            moved[route.next().server] += 1
    assert min(moved[B], moved[C]) > moved.total() // 4, f"seed {seed}: {moved}"


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_know_one_server_spread_over_those_it_tells_of(seed: int) -> None:
    chance = random.Random(seed).random
    moved: Counter[Server] = Counter()
    for _ in range(100):
        route = Route([A], chance)
        route.reached(0, A)
        route.refresh([A, B, C])
        order = route.servers
        route.refresh([C, B, A])
        assert route.servers == order, "an order that is drawn stays"
        route.lost(1)
        route.failed(1, "refused")
        moved[route.next().server] += 1
    assert min(moved[B], moved[C]) > 25, f"seed {seed}: {moved}"


def test_a_server_that_failed_before_is_tried_behind_the_others() -> None:
    route = lost_at(0, A, B, C)
    route.failed(1, "refused")
    route.reached(2, B)
    route.lost(3)
    assert [server for server, _ in attempts(route, 3)] == [B, C, A]
    route = lost_at(0, A, B, C)
    route.failed(1, "refused")
    route.reached(2, B)
    route.lost(3)
    route.failed(3, "refused")
    route.failed(4, "refused")
    # A is back, and it counts no more that A was away.
    route.reached(5, A)
    route.lost(6)
    assert [server for server, _ in attempts(route, 3)] == [A, B, C]


def test_pauses_lie_between_rounds_and_grow() -> None:
    route = lost_at(0, A, B)
    made = attempts(route, 8)
    assert [server for server, _ in made] == [A, B] * 4
    assert [pause for _, pause in made[1::2]] == [0] * 4
    pauses = [pause for _, pause in made[2::2]]
    assert pauses == [PAUSE_NS_MIN, PAUSE_NS_MIN * 3 // 2, PAUSE_NS_MIN * 9 // 4]


def test_pauses_grow_with_the_time_that_the_server_is_away_and_not_for_ever() -> None:
    route = lost_at(0, A)
    waited = elapsed = 0
    while elapsed < 2 * SECOND_NS:
        ((_, waited),) = attempts_at(route, elapsed)
        elapsed += waited
    assert waited == PAUSE_NS_SHORT
    while elapsed < 120 * SECOND_NS:
        ((_, waited),) = attempts_at(route, elapsed)
        elapsed += waited
    assert waited == PAUSE_NS_MAX


def attempts_at(route: Route, now_ns: int) -> list[tuple[Server, int]]:
    server, at_ns = route.next()
    route.failed(at_ns, "refused")
    return [(server, at_ns - now_ns)]


def test_clients_that_lost_the_same_server_do_not_all_come_back_at_once() -> None:
    early, late = lost_at(0, A, chance=0.0), lost_at(0, A, chance=1.0)
    assert attempts(early, 2)[1] == (A, PAUSE_NS_MIN // 2)
    assert attempts(late, 2)[1] == (A, PAUSE_NS_MIN)


def test_a_server_that_lets_us_in_and_drops_us_again_is_not_hammered() -> None:
    route = lost_at(0, A)
    attempts(route, 3)
    route.reached(SECOND_NS, A)
    route.lost(SECOND_NS + 1)
    assert route.next().at_ns > SECOND_NS + 1
    route.reached(2 * SECOND_NS, A)
    route.lost(2 * SECOND_NS + STEADY_NS)
    assert route.next().at_ns == 2 * SECOND_NS + STEADY_NS


def test_servers_that_the_system_tells_of_are_tried_too() -> None:
    route = lost_at(0, A, chance=0.0)
    route.refresh(read_servers(["b:2", "a:1", "not an address!", "c:3"]))
    route.lost(0)
    assert [server for server, _ in attempts(route, 3)] == [A, B, C]


def test_servers_that_the_system_does_not_tell_of_any_more_are_forgotten_unless_they_were_named() -> None:
    route = lost_at(0, A, B)
    route.refresh([B, C])
    assert route.servers == [A, B, C]
    route.refresh([Server("d", 4)])
    assert route.servers == [A, B, Server("d", 4)]
    route.refresh([])
    assert route.servers == [A, B]


def test_a_server_that_is_forgotten_while_it_is_ours_is_not_tried_again() -> None:
    route = Route([A], lambda: 1.0)
    route.refresh([A, B])
    route.reached(0, B)
    route.refresh([A])
    route.lost(1)
    assert [server for server, _ in attempts(route, 2)] == [A, A]


def test_a_server_that_fell_silent_is_tried_last() -> None:
    route = Route([A, B, C], lambda: 1.0)
    route.reached(0, B)
    route.lost(7, was_silent=True)
    assert attempts(route, 3) == [(C, 0), (A, 0), (B, 0)]


def test_the_only_server_is_tried_though_it_fell_silent() -> None:
    route = Route([A], lambda: 1.0)
    route.lost(7, was_silent=True)
    assert attempts(route, 1) == [(A, 0)]


def test_the_reasons_are_kept_until_a_server_is_reached() -> None:
    route = lost_at(0, A, B)
    attempts(route, 2)
    assert route.reasons == "a:1: refused; b:2: refused"
    route.reached(1, B)
    assert route.reasons == ""
    assert route.current == B
