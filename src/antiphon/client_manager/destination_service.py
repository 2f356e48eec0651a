"""Destination service: from the name of a destination to its id and its channel.

Where it sits
    a client's request  ->  DESTINATION SERVICE  ->  lookups and ordered commands  ->  the answer

The service keeps known names. For others it asks the channels: the system channel, which has the lowest name,
has the placements, and a name's channel has the destination. A missing destination that may be made is placed
by an ordered PLACE in the system channel, and made by an ordered CREATE in its own.

    name  ->  placement  ->  (PLACE)  ->  the destination itself  ->  (CREATE)  ->  id

What it promises
    DST1  All requests for a missing name share one CREATE and its answer; each other settings have one more.
    DST2  Two client managers never make one name twice: the second is told the first one's channel and id.
    DST3  A remembered name may be out of date, and is asked for anew before a request is refused or a
          destination is made because of it.
    DST4  No request waits for ever for a channel without a quorum: existing destinations are still found, a
          creation is refused after a while. An ordered creation may happen all the same.

What it leaves to others
    The fold and the primary judge an id that is used after its destination was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from antiphon.bus.messages import Advertised
from antiphon.client_manager.asking import Answer, Asking
from antiphon.client_manager.bulk_creation import BulkCreation
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.flow import orders_nothing
from antiphon.client_manager.loads import Loads
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.session import AS_IT_IS, Creation, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import DestinationUnavailable, InvalidName
from antiphon.names import (
    DEAD_QUEUE_NAME,
    TEMPORARY,
    DestinationName,
    channel_of_temporary,
    parse_destination,
)
from antiphon.wire.commands import (
    CommandKind,
    CreateDestination,
    Outcome,
    OutcomeCode,
    Payload,
    PlaceDestination,
)
from antiphon.wire.destination_frames import DestinationsCreate

KIND_CODES = {"queue": 1, "topic": 2}
SETTINGS_VERSION = 1

DEFAULTS = "{}"

UNKNOWN = "destination.unknown"
REFUSED = "destination.refused"

_NS_PER_MS = 1_000_000


class Destination(NamedTuple):
    id: int
    channel: str
    settings_version: int


NOT_MADE_YET = 0
"""In place of an id: the answer to a client that asks where its next temporary destination is to be."""


class Waiter(NamedTuple):
    """The request for a destination, and the session it is for, if any; or its place in a bulk creation."""

    connection: Connection
    request: int
    session: int = 0
    bulk: BulkCreation | None = None
    at: int = 0


@dataclass(slots=True, eq=False)
class Search:
    """A requested destination, on its way to being found or made."""

    creation: Creation
    waiters: list[Waiter]
    asked: Literal["placement", "destination"] = "placement"
    """The last question: for the placement of the name, or for the destination itself."""
    channel: str = ""
    """The channel of the destination, also before it is made."""
    is_certain: bool = False
    """Did the system channel say so, or is it only remembered (DST3)?"""
    ordered_in: str = ""
    """The channel that has a command for it in its order, which cannot be taken back."""


class DestinationService:
    """The destinations known to one client manager; `found` tells a waiter."""

    def __init__(
        self,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        outbox: Outbox,
        asking: Asking,
        ordering: Ordering,
        found: Callable[[Waiter, Destination], None],
    ) -> None:
        self._channels = tuple(channels)
        self._system = min(channels)
        self._outbox = outbox
        self._asking = asking
        self._ordering = ordering
        self._found = found
        self._wait_ns = settings.directory_wait_ms * _NS_PER_MS
        self._kept_max = settings.placements_kept
        # Has the system channel had no primary for long? Then what exists is asked for first (DST4).
        self._asks_first = False
        self._lanes = {channel: SessionLane(channel, None) for channel in channels}
        self.loads = Loads(channels)
        self._by_name: dict[str, Destination] = {}
        self._names: dict[tuple[str, int], str] = {}
        self._placed: dict[str, str] = {}
        self._searches: dict[Creation, Search] = {}
        # When the waiters for an ordered command are told that it takes too long.
        self._deadlines: dict[Creation, int] = {}
        self._untimed: list[Search] = []

    def open(self, text: str, waiter: Waiter, *, may_create: bool, channel: str = "") -> None:
        """Find a destination, and make it if there is none and `may_create`."""
        if text == DEAD_QUEUE_NAME:
            self._open_part(text, waiter, channel, may_create=may_create)
            return
        if text in _TEMPORARY_PLACES:
            self._find_place(waiter, channel)
            return
        parsed = _parse(text)
        if parsed.is_temporary:
            self._open_temporary(parsed, waiter)
            return
        name = str(parsed)
        known = self._by_name.get(name)
        if known is not None:
            self._found(waiter, known)
        else:
            self._search(Creation(name, AS_IT_IS if may_create else None), waiter)

    def _open_part(self, name: str, waiter: Waiter, channel: str, *, may_create: bool) -> None:
        """Find a channel's part of a queue of the system, which has no placement."""
        if not channel and len(self._channels) == 1:
            channel = self._system
        if channel not in self._channels:
            names = ", ".join(self._channels)
            raise Refusal(REFUSED, f"every channel has a {name} of its own: name one of the channels {names}")
        creation = Creation(name, AS_IT_IS if may_create else None, channel)
        self._search(creation, waiter)

    def _find_place(self, waiter: Waiter, channel: str) -> None:
        """Choose the channel of a session's next temporary destination; the session itself makes it there."""
        if channel and channel not in self._channels:
            raise Refusal(REFUSED, f"there is no channel {channel[:80]!r}")
        self._found(waiter, Destination(NOT_MADE_YET, channel or self.loads.place(), SETTINGS_VERSION))

    def _open_temporary(self, name: DestinationName, waiter: Waiter) -> None:
        """Find a temporary destination in the channel that its name says. No client makes one by a name."""
        channel = channel_of_temporary(name)
        if channel not in self._channels:
            raise Refusal(UNKNOWN, _unknown(str(name)))
        self._search(Creation(str(name), None, channel), waiter)

    def create(self, text: str, settings: str, waiter: Waiter) -> None:
        """Make a destination; its channel judges the settings of an existing one."""
        self._create(text, *_take_channel(settings), waiter)

    def create_many(self, connection: Connection, wish: DestinationsCreate) -> None:
        """Make destinations with the same settings, each as if it were asked for alone."""
        settings, channel = _take_channel(wish.settings)
        bulk = BulkCreation(connection, wish)
        for at, text in enumerate(wish.names):
            try:
                self._create(text, settings, channel, Waiter(connection, wish.request, 0, bulk, at))
            except Refusal as refusal:
                bulk.refused(self._outbox, at, refusal.code, refusal.text)

    def _create(self, text: str, settings: str, channel: str, waiter: Waiter) -> None:
        parsed = _parse(text)
        if not parsed.can_be_chosen:
            raise Refusal(InvalidName.code, _not_to_choose(text))
        name = str(parsed)
        if channel and channel not in self._channels:
            raise Refusal(REFUSED, f"{name} cannot be made: there is no channel {channel[:80]!r}")
        self._search(Creation(name, settings, channel), waiter)

    def served(self, channel: str, *, is_served: bool) -> None:
        self.loads.served(channel, is_served=is_served)
        if channel == self._system:
            self._asks_first = not is_served

    def _search(self, creation: Creation, waiter: Waiter) -> None:
        search = self._searches.get(creation)
        if search is None:
            search = self._searches[creation] = Search(creation, [waiter])
            self._locate(search)
            return
        search.waiters.append(waiter)
        if search.ordered_in and creation not in self._deadlines:
            self._untimed.append(search)

    def _locate(self, search: Search) -> None:
        if not _has_placement(search.creation.name):
            search.is_certain = True
            self._enter(search, search.creation.channel)
            return
        if len(self._channels) == 1:
            search.is_certain = True
            self._enter(search, self._system)
            return
        remembered = self._placed.get(search.creation.name)
        if not search.creation.is_met_by_any and not self._asks_first:
            # It is to be made, most likely: the answer to a PLACE says where an existing one is.
            search.is_certain = True
            self._place(search)
        elif remembered is not None and search.creation.is_met_by_any:
            self._enter(search, remembered)
        else:
            self._ask_placement(search)

    def _ask_placement(self, search: Search) -> None:
        search.is_certain = True
        self._ask(search, self._system, "placement")

    def _ask(self, search: Search, channel: str, question: Literal["placement", "destination"]) -> None:
        search.asked = question
        self._asking.look_up(channel, {"question": question, "name": search.creation.name}, search)

    def told(self, search: Search, answer: Answer | None) -> None:
        """A channel has answered, or has not in time."""
        if search.asked == "placement":
            self._on_placement(search, answer)
        else:
            self._on_looked_up(search, answer)

    def _on_placement(self, search: Search, answer: Answer | None) -> None:
        creation = search.creation
        if answer is None:
            self._fail(search, DestinationUnavailable.code, _silent(self._system, creation.name))
        elif "channel" in answer:
            self._enter(search, answer["channel"])
        elif creation.settings is None:
            self._fail(search, UNKNOWN, _unknown(creation.name))
        else:
            self._place(search)

    def _place(self, search: Search) -> None:
        search.channel = search.creation.channel or self.loads.place()
        place = PlaceDestination(name=search.creation.name, channel=search.channel)
        self._order(search, self._system, place)

    def _on_placed(self, search: Search, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            self.remember_place(search.creation.name, search.channel)
            self._make(search)
        elif outcomes[0].code == OutcomeCode.EXISTS:
            self._enter(search, outcomes[0].text)
        else:
            self._fail(search, REFUSED, outcomes[0].text)

    def _enter(self, search: Search, channel: str) -> None:
        """The destination lives in this channel, if anywhere."""
        creation = search.creation
        search.channel = channel
        if channel not in self._channels or creation.channel not in ("", channel):
            if search.is_certain:
                self._fail(search, REFUSED, f"{creation.name} has its place in channel {channel}")
            else:
                self._ask_placement(search)
        elif creation.is_met_by_any:
            self._ask(search, channel, "destination")
        else:
            self._make(search)

    def _on_looked_up(self, search: Search, answer: Answer | None) -> None:
        name = search.creation.name
        if answer is None:
            self._fail(search, DestinationUnavailable.code, _silent(search.channel, name))
        elif "destination" in answer:
            self._place_is(search)
            version = answer.get("settings_version", SETTINGS_VERSION)
            self._finish(search, Destination(answer["destination"], search.channel, version))
        elif not search.is_certain:
            self._placed.pop(name, None)
            self._ask_placement(search)
        elif search.creation.settings is None:
            self._fail(search, UNKNOWN, _unknown(name))
        else:
            self._make(search)

    def _make(self, search: Search) -> None:
        if not search.waiters:
            # The search took so long that all waiters were refused.
            del self._searches[search.creation]
            return
        kind, _, name = search.creation.name.partition(":")
        settings = search.creation.settings
        assert settings is not None, "a destination is made that was only to be found"
        create = CreateDestination(kind=KIND_CODES[kind], name=name, settings=settings or DEFAULTS)
        self._order(search, search.channel, create)

    def _on_created(self, search: Search, sequence: int, outcomes: Sequence[Outcome]) -> None:
        if not outcomes or outcomes[0].code == OutcomeCode.DUPLICATE:
            id = outcomes[0].original if outcomes else sequence
            self._place_is(search)
            self._finish(search, Destination(id, search.channel, SETTINGS_VERSION), is_new=not outcomes)
        elif outcomes[0].code == OutcomeCode.EXISTS:
            # The system channel itself: the name was freed and given to another channel meanwhile.
            self._enter(search, outcomes[0].text)
        else:
            text = outcomes[0].text or f"{search.creation.name} could not be made"
            self._fail(search, REFUSED, text)

    def _order(self, search: Search, channel: str, payload: Payload) -> None:
        search.ordered_in = channel
        self._untimed.append(search)
        self._ordering.order(self._lanes[channel], payload, detail=search.creation)

    def settled(self, creation: Creation, kind: int, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """A command of this service was applied at `sequence`, except for `outcomes`."""
        search = self._searches[creation]
        search.ordered_in = ""
        self._deadlines.pop(creation, None)
        if kind == CommandKind.PLACE:
            self._on_placed(search, outcomes)
        else:
            self._on_created(search, sequence, outcomes)

    def next_deadline_ns(self) -> int | None:
        return next(iter(self._deadlines.values()), None)

    def keep_time(self, now_ns: int) -> None:
        """Refuse the requests that have waited for too long (DST4)."""
        for creation, deadline_ns in list(self._deadlines.items()):
            if deadline_ns > now_ns:
                break
            del self._deadlines[creation]
            search = self._searches[creation]
            self._refuse(search, DestinationUnavailable.code, _no_quorum(search))
        for search in self._untimed:
            if search.ordered_in and search.waiters:
                self._deadlines.setdefault(search.creation, now_ns + self._wait_ns)
        self._untimed.clear()

    def _finish(self, search: Search, found: Destination, *, is_new: bool = False) -> None:
        del self._searches[search.creation]
        name = search.creation.name
        if _has_placement(name):
            self._remember(name, found)
        for waiter in search.waiters:
            if waiter.bulk is None:
                self._found(waiter, found)
            else:
                waiter.bulk.found(self._outbox, waiter.at, is_new=is_new)

    def _remember(self, name: str, found: Destination) -> None:
        former = self._by_name.pop(name, None)
        if former is not None:
            self._names.pop((former.channel, former.id), None)
        self._by_name[name] = found
        self._names[found.channel, found.id] = name
        if len(self._by_name) > self._kept_max:
            oldest = next(iter(self._by_name))
            forgotten = self._by_name.pop(oldest)
            self._names.pop((forgotten.channel, forgotten.id), None)

    def _fail(self, search: Search, code: str, text: str) -> None:
        del self._searches[search.creation]
        self._refuse(search, code, text)

    def _refuse(self, search: Search, code: str, text: str) -> None:
        waiters, search.waiters = search.waiters, []
        for waiter in waiters:
            if waiter.bulk is None:
                self._outbox.refuse(waiter.connection, waiter.request, code, text)
            else:
                waiter.bulk.refused(self._outbox, waiter.at, code, text)

    def advertised(self, channel: str, message: Advertised) -> None:
        """The system channel tells of new placements, which need not be asked for."""
        for name, place in zip(message.names, message.channels, strict=False):
            self.remember_place(name, place)

    def remember_place(self, name: str, channel: str) -> None:
        self._placed.pop(name, None)
        self._placed[name] = channel
        if len(self._placed) > self._kept_max:
            del self._placed[next(iter(self._placed))]

    def _place_is(self, search: Search) -> None:
        if len(self._channels) > 1 and _has_placement(search.creation.name):
            self.remember_place(search.creation.name, search.channel)

    def retire(self, channel: str, destination: int) -> None:
        """The destination is gone: its name may be given to another, its id never is."""
        name = self._names.pop((channel, destination), None)
        known = self._by_name.get(name) if name is not None else None
        if name is not None and known is not None and (known.channel, known.id) == (channel, destination):
            del self._by_name[name]


def _parse(text: str) -> DestinationName:
    """The name a client gave, or a Refusal with its fault."""
    try:
        name = parse_destination(text)
    except InvalidName as error:
        raise Refusal(error.code, error.text) from None
    if name.is_reserved:
        raise Refusal(InvalidName.code, _not_to_choose(text))
    return name


_TEMPORARY_PLACES = (f"queue:{TEMPORARY}", f"topic:{TEMPORARY}")


def _has_placement(name: str) -> bool:
    """Does the system channel know the channel of this name? Otherwise the request, or the name, says it.

    The others are not remembered either: every channel has a dead queue, and temporary ones come and go.
    """
    return name != DEAD_QUEUE_NAME and not parse_destination(name).is_temporary


def _not_to_choose(name: str) -> str:
    return f"{name}: names that begin with _ are the system's own"


def _take_channel(settings: str) -> tuple[str, str]:
    """The settings without their `channel`, and that channel; the fold refuses unreadable ones."""
    try:
        given: Any = json.loads(settings or DEFAULTS)
    except (ValueError, RecursionError):
        return settings, ""
    if not isinstance(given, dict) or "channel" not in given:
        return settings or DEFAULTS, ""
    channel = given.pop("channel")
    if not isinstance(channel, str) or not channel:
        raise Refusal(REFUSED, "the channel of a destination is the name of one")
    return json.dumps(given, sort_keys=True), channel


def _unknown(name: str) -> str:
    is_temporary = parse_destination(name).is_temporary
    gone = " any more: it lived with the session that made it" if is_temporary else ""
    return f"there is no destination {name}{gone}"


def _silent(channel: str, name: str) -> str:
    return f"channel {channel} does not answer at the moment, so whether there is a {name} is not known"


def _no_quorum(search: Search) -> str:
    why = orders_nothing(search.ordered_in)
    return f"{search.creation.name} could not be made in time: {why}. What exists can still be used"
