"""restore(capture(state)) is the identity.

A derived part of the state (the first held number of a destination, the locks, the index of names) is in no
digest: two replicas may differ in it and report the same. So after a sample of the entries a captured state
is restored, and both are compared by walking through all their objects:

    - the same values everywhere, and the same order where the order is a part of the state
    - an object in two places of one state is one object in the same two places of the other
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from antiphon.bus.messages import Entry
from antiphon.errors import AntiphonError
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.ages import Ages
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.index import BatchIndex
from antiphon.message_manager.state.destinations.owners import Owners
from antiphon.message_manager.state.destinations.placements import Placements
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.transactions import Transactions
from antiphon.message_manager.state.uncommitted import Uncommitted
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World

SAMPLE_ONE_IN: Final = 24

Restore = Callable[[bytes], ChannelState]

# A count of one life: each life begins it anew.
_PASSING: Final = {(Uncommitted, "generation")}
# Dicts whose order is that of the log.
_ORDERED: Final = {
    (Directory, "_by_id"),
    (Directory, "_topics"),
    (Directory, "_families"),
    (Topic, "subscriptions"),
    (Family, "subscriptions"),
    (Transactions, "done"),
    (Placements, "_channels"),
}
_VALUES: Final = (int, float, str, bytes, bool, frozenset, array, type(None))


def difference(state: ChannelState, other: ChannelState) -> str | None:
    """The first difference of two states, in words; None if there is none."""
    walk = _Walk()
    found = next(walk.compare("state", state, other), None)
    if found is not None:
        return found
    for one, two in zip(state.stores, other.stores, strict=True):
        # Rows without a live message are no part of the state.
        if one.index.live_columns(one.stored) != two.index.live_columns(two.stored):
            return f"the places of store {one.id}"
    for family, again in zip(state.directory.families, other.directory.families, strict=True):
        if family.living_runs() != again.living_runs():
            return f"the topics of the messages of {family.name}"
    for directory in (state.directory, other.directory):
        # When a topic is looked at next may differ; that is no part of the state.
        for topic in directory.topics:
            if not directory.ages.watches(topic):
                return f"{topic.name} has messages that will be too old, and nobody would look"
    return None


def what_a_restore_changes(state: ChannelState, restore: Restore = ChannelState.restore) -> str | None:
    """Capture this state, restore it, and compare; None if nothing has changed."""
    digest, data = state.capture()
    try:
        again = restore(data)
    except AntiphonError as error:
        return f"what was captured is refused: {error}"
    found = difference(state, again)
    if found is None and again.digest() != digest:
        found = "the digest"
    return found


class _Walk:
    """Walks through two states in step."""

    def __init__(self) -> None:
        # The partner of each object that was met, by identity; both are kept alive meanwhile.
        self._partner: dict[int, Any] = {}
        self._met: list[Any] = []

    def compare(self, where: str, one: Any, other: Any, *, is_ordered: bool = False) -> Iterator[str]:
        if type(one) is not type(other):
            yield f"{where} is {one!r:.100}, and {other!r:.100} after a restore"
        elif isinstance(one, _VALUES):
            if one != other:
                yield f"{where} is {one!r:.100}, and {other!r:.100} after a restore"
        elif isinstance(one, tuple):
            yield from self._compare_all(where, one, other)
        elif self._are_partners(one, other) is None:
            self._partner[id(one)], self._partner[id(other)] = other, one
            self._met += (one, other)
            yield from self._compare_parts(where, one, other, is_ordered=is_ordered)
        elif not self._are_partners(one, other):
            yield f"{where} is the same as something else before a restore or after it, and not both"

    def _are_partners(self, one: Any, other: Any) -> bool | None:
        """None: both are met for the first time."""
        partner, back = self._partner.get(id(one)), self._partner.get(id(other))
        if partner is None and back is None:
            return None
        return partner is other and back is one

    def _compare_parts(self, where: str, one: Any, other: Any, *, is_ordered: bool) -> Iterator[str]:
        if isinstance(one, BatchIndex | Owners | Ages):
            return
        if isinstance(one, list | deque):
            yield from self._compare_all(where, one, other)
        elif isinstance(one, dict):
            if list(one) != list(other) if is_ordered else one.keys() != other.keys():
                yield f"{where} has {list(one)!r:.100}, and {list(other)!r:.100} after a restore"
                return
            for key, value in one.items():
                yield from self.compare(f"{where}[{key!r}]", value, other[key])
        else:
            kind = type(one)
            for name in _fields(kind):
                if (kind, name) not in _PASSING:
                    is_ordered = (kind, name) in _ORDERED
                    values = getattr(one, name), getattr(other, name)
                    yield from self.compare(f"{where}.{name}", *values, is_ordered=is_ordered)

    def _compare_all(self, where: str, one: Any, other: Any) -> Iterator[str]:
        if len(one) != len(other):
            yield f"{where} has {len(one)} parts, and {len(other)} after a restore"
            return
        for at, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from self.compare(f"{where}[{at}]", mine, its)


def _fields(kind: type[Any]) -> list[str]:
    fields = [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]
    assert fields, f"it is not known what {kind.__name__} is made of"
    return fields


class Restores(Checker):
    """Restores the captured state after some entries, and compares."""

    promise = "I11 restore"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._chance = world.random("restores")

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if self._chance.randrange(SAMPLE_ONE_IN):
            return
        self.world.probe("model.restored_and_compared")
        found = what_a_restore_changes(state)
        if found is not None:
            self.fail(f"node {node} after {entry.last}: {found}")
