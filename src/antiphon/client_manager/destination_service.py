"""Destination service: from the name of a destination to its id and its channel.

Where it sits
    a client's request  ->  DESTINATION SERVICE  ->  lookups and ordered commands  ->  the answer

The service keeps known names. For others it asks the channels: the system channel, which has the lowest name,
has the placements, and a name's channel has the destination. A missing destination that may be made is placed
by an ordered PLACE in the system channel, and made by an ordered CREATE in its own.

    name  ->  placement  ->  (PLACE)  ->  the destination itself  ->  (CREATE)  ->  id

A spanning destination has a part in each of several channels, which its placement lists. Its name is answered
with these channels, and each part is opened by itself.

What it promises
    DST1  All requests for a missing name share one CREATE and its answer; each other settings have one more.
    DST2  Two client managers never make one name twice: the second is told the first one's channel and id.
    DST3  A remembered name may be out of date, and is asked for anew before a request is refused or a
          destination is made because of it.
    DST4  The parts of a spanning destination have the settings of its first part: the first part is made
          before the others, and a missing part that is opened is made with them.
    DST5  No request waits for ever for a channel without a quorum: existing destinations are still found, a
          creation is refused after a while. An ordered creation may happen all the same.

What it leaves to others
    The fold and the primary judge an id that is used after its destination was deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from antiphon.bus.messages import Advertised
from antiphon.client_manager.asking import Answer, Asking
from antiphon.client_manager.bulk_creation import BulkCreation
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.flow import orders_nothing
from antiphon.client_manager.loads import Loads
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.session import AS_IT_IS, Creation, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import DestinationUnavailable, InvalidName, InvalidPattern
from antiphon.names import (
    CHANNELS_MAX,
    TEMPORARY,
    DestinationName,
    channel_of_temporary,
    parse_destination,
    pattern_of,
    read_channels,
    shown_name,
    spans,
    spell_channels,
)
from antiphon.selectors.name_patterns import compile_pattern
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
    """A destination in its channel, or a part of a spanning destination.

    A spanning destination as a whole has neither id nor channel, only `channels`.
    """

    id: int
    channel: str
    settings_version: int
    channels: tuple[str, ...] = ()


NOT_MADE_YET = 0
"""In place of an id: the answer to a client that asks where its next temporary destination is to be."""

Asked: TypeAlias = Literal["placement", "destination", "first"]
"""A question: for the placement of a name, for the destination in its channel, or for its first part."""


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
    asked: Asked = "placement"
    """The last question."""
    placement: str = ""
    """The placement of the name, also before it is ordered."""
    channel: str = ""
    """The channel in which the destination, or the wanted part, is looked for."""
    settings: str | None = None
    """The settings of the first part, once they are known: the wanted part is made with them."""
    left: list[str] = field(default_factory=list)
    """The channels in which the destination, or its parts, are still to be made."""
    made_in: str = ""
    """The channel of the last CREATE."""
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
        # By name, and by the channel of a part.
        self._known: dict[tuple[str, str], Destination] = {}
        self._names: dict[tuple[str, int], tuple[str, str]] = {}
        self._placed: dict[str, str] = {}
        self._searches: dict[Creation, Search] = {}
        # When the waiters for an ordered command are told that it takes too long.
        self._deadlines: dict[Creation, int] = {}
        self._untimed: list[Search] = []

    def open(self, text: str, waiter: Waiter, *, may_create: bool, channel: str = "") -> None:
        """Find a destination, and make it if there is none and `may_create`."""
        if text in _TEMPORARY_PLACES:
            self._find_place(waiter, channel)
            return
        parsed = _parse(text)
        if parsed.has_parts:
            self._open_part(parsed, waiter, channel, may_create=may_create)
            return
        if parsed.is_temporary:
            self._open_temporary(parsed, waiter)
            return
        name = str(parsed)
        if channel and channel not in self._channels:
            raise Refusal(REFUSED, f"there is no channel {channel[:80]!r}")
        known = self._known.get((name, channel))
        if known is not None:
            self._found(waiter, known)
        else:
            self._search(Creation(name, AS_IT_IS if may_create else None, channel), waiter)

    def _open_part(self, parsed: DestinationName, waiter: Waiter, channel: str, *, may_create: bool) -> None:
        """Find a channel's part of a queue of the system, or of a family: they have no placement."""
        name = str(parsed)
        if parsed.is_family:
            try:
                compile_pattern(*pattern_of(name))
            except InvalidPattern as error:
                raise Refusal(error.code, error.text) from None
        if not channel and len(self._channels) == 1:
            channel = self._system
        if channel not in self._channels:
            names = ", ".join(self._channels)
            raise Refusal(
                REFUSED,
                f"every channel has a {shown_name(name)} of its own: name one of the channels {names}",
            )
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
        self._create(text, *_take_place(settings), waiter)

    def create_many(self, connection: Connection, wish: DestinationsCreate) -> None:
        """Make destinations with the same settings, each as if it were asked for alone."""
        settings, place, channels = _take_place(wish.settings)
        bulk = BulkCreation(connection, wish)
        for at, text in enumerate(wish.names):
            try:
                self._create(text, settings, place, channels, Waiter(connection, wish.request, 0, bulk, at))
            except Refusal as refusal:
                bulk.refused(self._outbox, at, refusal.code, refusal.text)

    def _create(self, text: str, settings: str, place: str, channels: int, waiter: Waiter) -> None:
        parsed = _parse(text)
        if not parsed.can_be_chosen:
            raise Refusal(InvalidName.code, _not_to_choose(text))
        name = str(parsed)
        for channel in read_channels(place) if place else ():
            if channel not in self._channels:
                raise Refusal(REFUSED, f"{name} cannot be made: there is no channel {channel[:80]!r}")
        if channels > len(self._channels):
            there = "is 1" if len(self._channels) == 1 else f"are {len(self._channels)}"
            raise Refusal(REFUSED, f"{name} cannot be made in {channels} channels: there {there}")
        self._search(Creation(name, settings, place, channels), waiter)

    def load_changed(self, channel: str, load: int) -> None:
        searches = self._searches.values()
        under_way = [one for one in searches if one.ordered_in and channel in read_channels(one.placement)]
        self.loads.changed(channel, load, len(under_way))

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

    def _ask(self, search: Search, channel: str, question: Asked) -> None:
        search.asked = question
        asked = "destination" if question == "first" else question
        self._asking.look_up(channel, {"question": asked, "name": search.creation.name}, search)

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
        creation = search.creation
        if creation.channels > 1 and not creation.channel:
            search.placement = spell_channels(self.loads.place_several(creation.channels))
        else:
            search.placement = creation.channel or self.loads.place()
        settings = ""
        if spans(search.placement):
            settings = _as_part(creation.settings or DEFAULTS, search.placement)
        place = PlaceDestination(name=creation.name, channel=search.placement, settings=settings)
        self._order(search, self._system, place)

    def _on_placed(self, search: Search, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            self.remember_place(search.creation.name, search.placement)
            self._make(search)
        elif outcomes[0].code == OutcomeCode.EXISTS:
            self._enter(search, outcomes[0].text)
        else:
            self._fail(search, REFUSED, outcomes[0].text)

    def _enter(self, search: Search, placement: str) -> None:
        """The destination lives in this channel, or in these, if anywhere."""
        creation = search.creation
        search.placement, search.settings = placement, None
        channels = read_channels(placement)
        if not self._fits(creation, channels):
            if search.is_certain:
                self._fail(search, REFUSED, f"{creation.name} has its place in {_in_words(channels)}")
            else:
                self._ask_placement(search)
        elif not creation.is_met_by_any:
            self._make(search)
        elif len(channels) > 1 and not creation.channel:
            self._place_is(search)
            self._finish(search, Destination(0, "", SETTINGS_VERSION, channels))
        else:
            search.channel = creation.channel or placement
            self._ask(search, search.channel, "destination")

    def _fits(self, creation: Creation, channels: tuple[str, ...]) -> bool:
        """Are these the channels that the request is about?"""
        if not all(channel in self._channels for channel in channels):
            return False
        if creation.channels and creation.channels != len(channels):
            return False
        if creation.is_met_by_any:
            return creation.channel in ("", *channels)
        return creation.channel in ("", spell_channels(channels))

    def _on_looked_up(self, search: Search, answer: Answer | None) -> None:
        name = search.creation.name
        is_first = search.asked == "first"
        if answer is None:
            channel = read_channels(search.placement)[0] if is_first else search.channel
            self._fail(search, DestinationUnavailable.code, _silent(channel, name))
        elif is_first and "destination" in answer:
            search.settings = answer["settings"]
            self._make(search)
        elif "destination" in answer:
            self._place_is(search)
            version = answer.get("settings_version", SETTINGS_VERSION)
            self._finish(search, Destination(answer["destination"], search.channel, version))
        elif not search.is_certain:
            self._placed.pop(name, None)
            self._ask_placement(search)
        elif not is_first and self._is_later_part(search):
            self._ask(search, read_channels(search.placement)[0], "first")
        elif search.creation.settings is None:
            self._fail(search, UNKNOWN, _unknown(name))
        else:
            self._make(search)

    def _is_later_part(self, search: Search) -> bool:
        """Is the wanted part one that is not made before the first part?"""
        return spans(search.placement) and search.channel != read_channels(search.placement)[0]

    def _make(self, search: Search) -> None:
        """Make the destination; of a spanning one the wanted part or all, the first part first (DST4)."""
        creation, channels = search.creation, read_channels(search.placement)
        if search.settings is not None:
            search.left = [search.channel]
        elif creation.is_met_by_any:
            search.left = [channels[0]]
        else:
            search.left = list(channels)
        self._make_next(search)

    def _make_next(self, search: Search) -> None:
        if not search.waiters:
            # The search took so long that all waiters were refused.
            del self._searches[search.creation]
            return
        kind, _, name = search.creation.name.partition(":")
        settings = search.settings
        if settings is None:
            assert search.creation.settings is not None, "a destination is made that was only to be found"
            settings = _as_part(search.creation.settings or DEFAULTS, search.placement)
        search.made_in = search.left.pop(0)
        create = CreateDestination(kind=KIND_CODES[kind], name=name, settings=settings)
        self._order(search, search.made_in, create)

    def _on_created(self, search: Search, sequence: int, outcomes: Sequence[Outcome]) -> None:
        if not outcomes or outcomes[0].code == OutcomeCode.DUPLICATE:
            self._place_is(search)
            channels, is_new = read_channels(search.placement), not outcomes
            if search.left:
                self._make_next(search)
            elif len(channels) > 1 and not search.creation.is_met_by_any:
                self._finish(search, Destination(0, "", SETTINGS_VERSION, channels), is_new=is_new)
            elif search.channel not in ("", search.made_in):
                self._ask(search, search.made_in, "first")
            else:
                id = outcomes[0].original if outcomes else sequence
                self._finish(search, Destination(id, search.made_in, SETTINGS_VERSION), is_new=is_new)
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
        """Refuse the requests that have waited for too long (DST5)."""
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
            self._remember((name, found.channel if spans(search.placement) else ""), found)
        for waiter in search.waiters:
            if waiter.bulk is None:
                self._found(waiter, found)
            else:
                waiter.bulk.found(self._outbox, waiter.at, is_new=is_new)

    def _remember(self, key: tuple[str, str], found: Destination) -> None:
        self._forget(self._known.pop(key, None))
        self._known[key] = found
        if not found.channels:
            self._names[found.channel, found.id] = key
        if len(self._known) > self._kept_max:
            self._forget(self._known.pop(next(iter(self._known))))

    def _forget(self, former: Destination | None) -> None:
        if former is not None:
            self._names.pop((former.channel, former.id), None)

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
            self.remember_place(search.creation.name, search.placement)

    def retire(self, channel: str, destination: int) -> None:
        """The destination is gone: its name may be given to another, its id never is."""
        key = self._names.pop((channel, destination), None)
        known = self._known.get(key) if key is not None else None
        if key is not None and known is not None and (known.channel, known.id) == (channel, destination):
            del self._known[key]


def _parse(text: str) -> DestinationName:
    """The name a client gave, or a Refusal with its fault."""
    try:
        name = parse_destination(text)
    except InvalidName as error:
        raise Refusal(error.code, error.text) from None
    if name.is_reserved and not name.has_parts:
        raise Refusal(InvalidName.code, _not_to_choose(text))
    return name


_TEMPORARY_PLACES = (f"queue:{TEMPORARY}", f"topic:{TEMPORARY}")


def _has_placement(name: str) -> bool:
    """Does the system channel know the channel of this name? Otherwise the request, or the name, says it.

    The others are not remembered either: every channel has a part, or they are temporary and come and go.
    """
    parsed = parse_destination(name)
    return not (parsed.has_parts or parsed.is_temporary)


def _not_to_choose(name: str) -> str:
    return f"{name}: names that begin with _ are the system's own"


def _take_place(settings: str) -> tuple[str, str, int]:
    """The settings without `channel` and `channels`, the wanted placement, and the wanted number of channels.

    The fold refuses unreadable settings.
    """
    try:
        given: Any = json.loads(settings or DEFAULTS)
    except (ValueError, RecursionError):
        return settings, "", 0
    if not isinstance(given, dict) or not given.keys() & {"channel", "channels"}:
        return settings or DEFAULTS, "", 0
    if given.keys() >= {"channel", "channels"}:
        raise Refusal(REFUSED, "a destination has a channel, or channels: not both")
    place, count = "", 0
    if "channel" in given:
        place = given.pop("channel")
        if not isinstance(place, str) or not place or spans(place):
            raise Refusal(REFUSED, "the channel of a destination is the name of one")
    else:
        channels = given.pop("channels")
        if isinstance(channels, int) and not isinstance(channels, bool) and channels > 0:
            count = channels
        elif _are_channels(channels):
            place, count = spell_channels(channels), len(channels)
        else:
            raise Refusal(REFUSED, "the channels of a destination are a number of them, or a list of names")
        if given.get("exclusive") and count > 1:
            # Said before the name has its place.
            raise Refusal(REFUSED, "an exclusive queue lives in one channel")
    return json.dumps(given, sort_keys=True), place, count


def _are_channels(given: object) -> bool:
    """Is this a list of different names?"""
    if not isinstance(given, list) or not 0 < len(given) <= CHANNELS_MAX:
        return False
    names = [one for one in given if isinstance(one, str) and one and "," not in one]
    return len(set(names)) == len(given)


def _as_part(settings: str, placement: str) -> str:
    """The settings of the parts of a destination with this placement."""
    if not spans(placement):
        return settings
    try:
        given: Any = json.loads(settings)
    except (ValueError, RecursionError):
        return settings  # the fold refuses them
    if not isinstance(given, dict):
        return settings
    return json.dumps({**given, "channels": placement}, sort_keys=True)


def _in_words(channels: Sequence[str]) -> str:
    return f"channel {channels[0]}" if len(channels) == 1 else f"channels {', '.join(channels)}"


def _unknown(name: str) -> str:
    is_temporary = parse_destination(name).is_temporary
    gone = " any more: it lived with the session that made it" if is_temporary else ""
    return f"there is no destination {shown_name(name)}{gone}"


def _silent(channel: str, name: str) -> str:
    why = f"channel {channel} does not answer at the moment"
    return f"{why}, so whether there is a {shown_name(name)} is not known"


def _no_quorum(search: Search) -> str:
    why = orders_nothing(search.ordered_in)
    return (
        f"{shown_name(search.creation.name)} could not be made in time: {why}. What exists can still be used"
    )
