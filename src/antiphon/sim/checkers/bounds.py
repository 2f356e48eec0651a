"""Bounds: memory, disk and log of a run depend on what is alive, not on what has happened.

memory   at rest every container of every machine holds at most a constant, plus one for each live
         session, connection, destination and subscription. A few hold the log since its base, the rows of
         stored messages, or a table of a given length.
disk     at rest the journal of every voting node has three segments, and those with something live.
log      the log is a small multiple of the clients' commands: a client sends unconfirmed commands again
         after each break of a connection, but nothing is sent for ever.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from antiphon import retries
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.replica import Replica
from antiphon.client_manager import requests
from antiphon.journal import records
from antiphon.journal.format import segment_name, segment_numbers, spare_name, spare_numbers
from antiphon.journal.journal import REST_SEGMENTS, Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.message_manager.delivery import message_groups
from antiphon.message_manager.state import known_ids, log_times, outcomes, sessions
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations import index, owners
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World
from antiphon.wire.commands import CommandKind, iterate_commands

_SIZED = (list, dict, set, deque, bytearray, array)
_OURS = "antiphon."
# The world around the machines may remember everything.
_NOT_OURS = "antiphon.sim."


class Container(NamedTuple):
    """A container: its place, and its size."""

    name: str
    size: int
    owner: Any


def containers(*roots: Any) -> Iterator[Container]:
    """All containers that these objects keep, directly or not, each once, of any module."""
    seen: set[int] = set()
    # Reached objects, with the container's name, if the object is a container, and its owner.
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
        elif _is_walked(thing) or owner is None:
            # Several machines have retries of their own, with bounds of their own.
            place = name if type(thing) is retries.Retries else type(thing).__name__
            left += [(one, f"{place}.{field}", thing) for field, one in _fields(thing)]


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


AT_REST = 24
"""The bound of any container, besides its live things; above the largest window of a client in a run."""

RANGES_MAX = 100
"""More than the messages of a run."""

IN_CODE = 64
"""Tables that are part of the code: which handler is for which kind."""

SAID_AGAIN = 4
"""How often a command may stand in the order, on average over a run."""

SAID_ANYHOW = 64


class Living(NamedTuple):
    """Counts of everything alive at one node."""

    things: int
    entries: int
    rows: int


_THINGS = frozenset(
    (
        "Sessions._rows",
        "ClientManager._connections",
        "Directory._by_id",
        "Topic.subscriptions",
        "Holds.rows",
    )
)
_CODE = frozenset(
    (
        "Replica._routes",
        "Replica._events",
        "Fold._handlers",
        "ClientManager._on_channel",
        "ClientManager._on_request",
        "ClientManager._on_event",
    )
)
_BY_LOG = frozenset(
    (
        "CommitLog._entries",
        "CommitLog._firsts",
        "CommitServer._marks",
        "Journal._tail",
        "RecordReader._views",
        "MessageManager._referrers",
    )
)
_BY_ROWS = frozenset(("Ranges._starts", "Ranges._stops", "SegmentUse._bytes"))
_TABLES: dict[str, Callable[[], int]] = {
    "Outcomes._rows": lambda: outcomes.OUTCOMES_MAX,
    "Outcomes._firsts": lambda: outcomes.OUTCOMES_MAX,
    "Session._records": lambda: sessions.RECORDS_MAX,
    "Session._numbers": lambda: sessions.RECORDS_MAX,
    "_DestinationIds._numbers": lambda: known_ids.IDS_MAX,
    "_DestinationIds._marks": lambda: known_ids.IDS_MAX + 1,
    "MessageGroups.shares": lambda: message_groups.BUCKETS,
    "GroupShare.buckets": lambda: message_groups.BUCKETS,
    "LogTimes._numbers": lambda: log_times.MARKS_MAX,
    "LogTimes._times": lambda: log_times.MARKS_MAX,
    "RecordReader._verified": lambda: records._REMEMBERED_MAX,
}


class Repetitions(Checker):
    """Counts the commands of one channel, and the different ones among them."""

    promise = "bounded log"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._applied = 0
        self._ordered = 0
        self._sent: Counter[tuple[int, int | bytes, int]] = Counter()

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._applied:
            return
        self._applied = entry.last
        if entry.kind is not EntryKind.DATA or payload is None:
            return
        for header, body, _ in iterate_commands(payload):
            if header.kind == CommandKind.SESSION_EXPIRE:
                # Proposed again whenever the session's time has passed, which a run may make very short.
                continue
            what = (header.session, header.number) if header.number else (0, bytes(body))
            self._sent[(*what, header.kind)] += 1
            self._ordered += 1
        if self._ordered > SAID_AGAIN * len(self._sent) + SAID_ANYHOW:
            ((_, most, kind), times) = self._sent.most_common(1)[0]
            self.fail(
                f"the log has {self._ordered} commands, and {len(self._sent)} were sent; {most!r:.40} of kind"
                f" {kind} stands there {times} times"
            )


def is_cut(replica: Replica | None, journal: Journal | None) -> bool:
    """Does a journal hold order records of entries behind the end of the log, which was cut?"""
    return replica is not None and journal is not None and journal.highest_entry > replica.last


class Space(Checker):
    promise = "bounded disk"

    def complaint(self, name: str, disk: MemoryDisk, live: ChannelState | None) -> str | None:
        """The files of this disk beyond its bound; live records are counted by the state, not by the
        journal."""
        files = disk.list_files()
        segments = [segment_name(number) for number in segment_numbers(files)]
        spares = [spare_name(number) for number in spare_numbers(files)]
        sizes = [disk.size(one) for one in (*segments, *spares)]
        alive = set() if live is None else {place.segment for place in live.records()}
        most = (REST_SEGMENTS + len(alive)) * max(sizes, default=0)
        if sum(sizes) <= most:
            return None
        return (
            f"at rest the journal of {name} has {sum(sizes)} bytes in {len(segments)} segments and"
            f" {len(spares)} spares, at most {most} for what lives in {len(alive)} of them"
        )


class Rest(Checker):
    promise = "bounded memory"

    def at_rest(self, name: str, machines: Iterable[Any]) -> None:
        """Nothing is under way any more; `machines` are all machines of a node or of a client."""
        complaint = self.complaint(name, machines)
        if complaint is not None:
            self.fail(complaint)

    def complaint(self, name: str, machines: Iterable[Any]) -> str | None:
        """The first container of these machines beyond its bound."""
        found = list(containers(*machines))
        living = _living(found)
        for one in found:
            most = _most(one, living)
            if one.size > most:
                return f"at rest {one.name} of {name} holds {one.size}, at most {most} for {living}"
        return None


def _living(found: Sequence[Container]) -> Living:
    directories = {id(one.owner): one.owner for one in found if isinstance(one.owner, Directory)}
    return Living(
        things=sum(one.size for one in found if one.name in _THINGS),
        entries=max((one.size for one in found if one.name == "CommitLog._entries"), default=0),
        rows=sum(one.live.count for directory in directories.values() for one in directory),
    )


def _most(container: Container, living: Living) -> int:
    name = container.name
    if name in _THINGS or name == "CommitLog._entries":
        # The bound does not follow from a machine's contents.
        return 1 << 62
    if name in _CODE:
        return IN_CODE
    table = _TABLES.get(name)
    if table is not None:
        return table()
    most = AT_REST + living.things
    if name.startswith("Requests._detached."):
        # A client manager asks only now and then whether the sessions that it remembers have ended.
        most = requests._DETACHED_MAX
    if type(container.owner) is retries.Retries and name.endswith("._due"):
        return 2 * most + retries._STALE_MAX
    if name in _BY_LOG or name.startswith("PayloadIndex."):
        return most + living.entries
    if name in _BY_ROWS:
        # Messages of a client that are not consecutive are as many ranges.
        return most + max(living.rows, RANGES_MAX)
    if name.startswith("Owners."):
        return owners._SPARE + 2 * living.rows + most
    if name.startswith(("BatchIndex.", "TimedRanges.")):
        return index._TIDY_ROWS_MIN + 2 * living.rows + most
    return most
