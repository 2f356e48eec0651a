"""Directory: the destinations of a channel, by id and by name."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.errors import InvalidName
from antiphon.message_manager.destinations.index import SegmentUse
from antiphon.message_manager.destinations.queue import Queue
from antiphon.names import parse_destination
from antiphon.wire.commands import CreateDestination

# The kinds of destination as the CREATE command spells them.
KIND_QUEUE = 1
KIND_TOPIC = 2
_PREFIXES = {KIND_QUEUE: "queue:", KIND_TOPIC: "topic:"}


class Directory:
    """What exists in a channel. Ids ascend in the order of creation and are never used twice."""

    __slots__ = ("_by_id", "_by_name", "use")

    def __init__(self) -> None:
        self._by_id: dict[int, Queue] = {}
        self._by_name: dict[str, Queue] = {}
        self.use = SegmentUse()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Queue]:
        """By id, ascending: a created one has a higher id than all before."""
        return iter(self._by_id.values())

    def get(self, destination: int) -> Queue | None:
        return self._by_id.get(destination)

    def named(self, name: str) -> Queue | None:
        """Look up `queue:orders`."""
        return self._by_name.get(name)

    def spelled(self, wish: CreateDestination) -> str:
        """The full name of what a CREATE asks for; raises InvalidName if there can be no such thing."""
        prefix = _PREFIXES.get(wish.kind)
        if prefix is None:
            raise InvalidName(f"there is no destination of kind {wish.kind}")
        return str(parse_destination(prefix + wish.name))

    def create(self, id: int, name: str, settings: str) -> Queue:
        queue = Queue(id=id, name=name, settings=settings, use=self.use)
        self.add(queue)
        return queue

    def add(self, queue: Queue) -> None:
        assert queue.name not in self._by_name, f"{queue.name} exists already"
        assert not self._by_id or queue.id > next(reversed(self._by_id)), "ids of destinations do not ascend"
        self._by_id[queue.id] = queue
        self._by_name[queue.name] = queue

    def delete(self, queue: Queue) -> None:
        """Remove a destination and all it holds."""
        queue.index.clear(queue.live)
        del self._by_id[queue.id]
        del self._by_name[queue.name]
