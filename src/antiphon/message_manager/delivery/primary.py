"""Primary: what a replica has for as long as it serves the channel, and only then."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.doubts import Doubts
from antiphon.message_manager.delivery.proposals import Proposals


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """The consumers and the clocks of one term."""

    term: int
    delivery: Delivery
    proposals: Proposals
    doubts: Doubts
    placed: list[tuple[str, str]] = field(default_factory=list)
    """Destinations that were given a channel, name and channel, which nobody has been told of yet."""
