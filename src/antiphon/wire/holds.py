"""The payloads of the commands of holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from antiphon.wire.layout import U64, Bool, Field, Text, list_of
from antiphon.wire.payload import AnnotatedPayload
from antiphon.wire.primitives import Reader, Writer

HOLD_NAME_BYTES_MAX: Final = 255
HOLD_MS_MAX: Final = 366 * 86_400_000
"""How long a hold may last after its last renewal."""

HELD_DESTINATIONS_MAX: Final = 16_384
"""Destinations of one hold: as many bytes as ranges may have."""

DestinationIds = Annotated[tuple[int, ...], list_of(Field(Writer.u64, Reader.u64), 8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(AnnotatedPayload):
    """Keep everything of these destinations from number `position` on, under this name.

    No destinations: all of the channel, also later ones. Repeated, the command renews the hold, and moves its
    position on, never back. The hold ends when it has not been renewed for `limit_ms` of log time. A hold
    that `consumes` a queue locks its messages for the holder, and acknowledges those that the position
    passes. With `acks`, acknowledgements are kept as well.

    `heard` is the highest number of the channel that the holder had heard of. A command from before the
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
    """End a hold, if there is one and it did not begin behind number `heard`."""

    name: Text
    heard: U64 = 0
