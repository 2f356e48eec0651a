"""Subscribed: the destinations of a query, and where each of their channels ends at the moment.

SUB1  A destination that a pattern matches is known before any of its messages lies below a channel's
      `next`: the listing is at least as new as the returned heads.
SUB2  A named destination that does not exist is an error, unless only a former subscription is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from antiphon.errors import DestinationError, DestinationUnavailable
from antiphon.pipeline.offsets import FIRST, Choice
from antiphon.pipeline.patience import PatientRanges

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import ChannelHead, RangeDestination

LISTINGS_MAX: Final = 50
"""Listings in a row before giving up: destinations are made and deleted faster than they can be listed."""


class Subscribed:
    """The destinations of `subscribe`, or those that match `subscribePattern` now."""

    def __init__(
        self, ranges: PatientRanges, choice: Choice, *, has_acks: bool = False, is_former: bool = False
    ) -> None:
        self._ranges = ranges
        self._choice = choice
        self._has_acks = has_acks
        self._is_former = is_former
        self._is_listed = False
        self.destinations: tuple[RangeDestination, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(sorted({destination.channel for destination in self.destinations}))

    @property
    def watched(self) -> tuple[str, ...]:
        """The channels that are asked for news: for a pattern all, since it may match on any of them."""
        if self._choice.pattern is None:
            return self.channels
        return tuple(sorted(self._ranges.versions))

    def on(self, channel: str) -> tuple[RangeDestination, ...]:
        return tuple(destination for destination in self.destinations if destination.channel == channel)

    def keep(self, keeps: Callable[[str, str], bool]) -> None:
        """Read only some of them from now on, by name and channel."""
        self.destinations = tuple(
            destination for destination in self.destinations if keeps(destination.name, destination.channel)
        )

    def name_of(self, channel: str, id: int) -> str:
        """The name of a destination, by its id on its channel."""
        found = self._find(channel, id)
        return f"destination {id} of channel {channel}" if found is None else found.name

    def label_of(self, channel: str, id: int) -> str:
        """The name of a destination in an offset, where each part of a spanning one has its own."""
        found = self._find(channel, id)
        return f"destination {id} of channel {channel}" if found is None else found.label

    def _find(self, channel: str, id: int) -> RangeDestination | None:
        for destination in self.destinations:
            if destination.id == id and destination.channel == channel:
                return destination
        return None

    def heads(self, above: Mapping[str, int], wait_s: float = 0.0) -> dict[str, ChannelHead]:
        """Where the channels end. With `wait_s`, wait for news so long at most.

        A channel that `above` does not name is looked at from its beginning.
        """
        if not self._is_listed or (self._choice.pattern is not None and not self._ranges.versions):
            # For the first time, or for the first time on a new connection.
            self.look()
        for _ in range(LISTINGS_MAX):
            wanted = {channel: above.get(channel, FIRST) for channel in self.channels}
            try:
                heads = self._ranges.heads(
                    self.destinations,
                    above=wanted,
                    wait=wait_s,
                    channels=self.watched,
                    acks=self._has_acks,
                )
            except DestinationUnavailable:
                raise
            except DestinationError:
                # A destination was deleted. That ends a query that named it; a pattern just does not match
                # it.
                if self._choice.pattern is None and not self._is_former:
                    raise
                self.look()
                continue
            if self._is_current(heads):
                return {channel: head for channel, head in heads.items() if channel in wanted}
            self.look()
            wait_s = 0.0
        raise DestinationUnavailable(
            "destinations are made and deleted faster than a query can list them; try again later"
        )

    def _is_current(self, heads: Mapping[str, ChannelHead]) -> bool:
        if self._choice.pattern is None:
            return True
        versions = self._ranges.versions
        return all(head.version <= versions.get(channel, -1) for channel, head in heads.items())

    def look(self) -> None:
        """List the destinations anew.

        Versions are those of the last listing of the connection: after another listing, this must be done
        before heads are asked for (SUB1).
        """
        choice = self._choice
        if choice.pattern is not None:
            self.destinations = self._ranges.destinations(pattern=choice.pattern, match=choice.match)
        elif self._is_former:
            self.destinations = tuple(found for name in choice.names for found in self._if_any(name))
        else:
            self.destinations = self._ranges.destinations(names=list(choice.names))
        self._is_listed = True

    def _if_any(self, name: str) -> tuple[RangeDestination, ...]:
        try:
            return self._ranges.destinations(names=[name])
        except DestinationUnavailable:
            raise
        except DestinationError:
            return ()

    def forget(self) -> None:
        """Another listing was made: list anew before heads are asked for."""
        self._is_listed = False
