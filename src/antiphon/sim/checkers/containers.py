"""Containers: what a machine keeps, found by walking over it.

Everything that a machine refers to is looked at: attributes, slots, and what lists, dictionaries, sets and
queues hold. A container is named by the class and the attribute that keeps it, whatever the instance.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

_SIZED = (list, dict, set, deque, bytearray, array)
_OURS = "antiphon."
# The world around the machines is the simulator's, and may remember everything.
_NOT_OURS = "antiphon.sim."


class Container(NamedTuple):
    """One container: where it is kept, and how much it holds."""

    name: str
    size: int
    owner: Any


def containers(*roots: Any) -> Iterator[Container]:
    """All containers that these objects keep, directly or not, each once."""
    seen: set[int] = set()
    # What is reached, with the container's name if it is one, and whose it is.
    left: list[tuple[Any, str, Any]] = [(root, type(root).__name__, None) for root in roots]
    while left:
        thing, name, owner = left.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _SIZED):
            yield Container(name, len(thing), owner)
            if isinstance(thing, dict):
                left += [(one, f"{name}[]", owner) for one in (*thing.keys(), *thing.values())]
            elif not isinstance(thing, bytearray | array):
                left += [(one, f"{name}[]", owner) for one in thing]
        elif isinstance(thing, tuple | frozenset):
            left += [(one, f"{name}()", owner) for one in thing]
        elif _is_walked(thing):
            left += [(one, f"{type(thing).__name__}.{field}", thing) for field, one in _fields(thing)]


def _is_walked(thing: Any) -> bool:
    module = type(thing).__module__
    return module.startswith(_OURS) and not module.startswith(_NOT_OURS)


def _fields(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)
