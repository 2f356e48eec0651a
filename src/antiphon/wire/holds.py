"""Holds: the payloads of the commands by which somebody keeps messages of a channel from going."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from antiphon.wire.layout import U64, Bool, Field, Text, list_of
from antiphon.wire.payload import AnnotatedPayload
from antiphon.wire.primitives import Reader, Writer

HOLD_NAME_BYTES_MAX: Final = 255
HOLD_MS_MAX: Final = 366 * 86_400_000
"""How long a hold may last after the last word of its holder."""

HELD_DESTINATIONS_MAX: Final = 16_384
"""Destinations that one hold names: as many bytes as ranges may have."""

DestinationIds = Annotated[tuple[int, ...], list_of(Field(Writer.u64, Reader.u64), 8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(AnnotatedPayload):
    """Keep everything of these destinations from number `position` on, for whoever reads under this name.

    No destinations: all of the channel, also those that are still to come. Said again, the hold is renewed,
    and its position moves on, never back. It ends when its holder has not been heard of for `limit_ms` of
    log time. Who `consumes` a queue is the only one to get its messages, and what the position has passed
    since the hold began is acknowledged. With `acks`, acknowledgements are kept as well.

    `heard` is the highest number of the channel that the holder had heard of. A word that was said before the
    present hold of this name began, or before the last hold of the channel ended, is OUTDATED.
    """

    name: Text
    position: U64
    limit_ms: U64
    heard: U64 = 0
    consumes: Bool = False
    acks: Bool = False
    destinations: DestinationIds = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHold(AnnotatedPayload):
    """End a hold. One that is not there is fine; one that began behind number `heard` is not ended."""

    name: Text
    heard: U64 = 0
