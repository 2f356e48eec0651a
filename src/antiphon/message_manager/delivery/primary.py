"""Primary: the parts of a replica that exist only while it is the primary."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.message_manager.delivery.burials import Burials
from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.doubts import Doubts
from antiphon.message_manager.delivery.matching import Matching
from antiphon.message_manager.delivery.proposals import Proposals


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    term: int
    delivery: Delivery
    proposals: Proposals
    doubts: Doubts
    burials: Burials
    matching: Matching
    placed: list[tuple[str, str]] = field(default_factory=list)
    """Names that were given a channel, with the channel, of which no client manager has been told yet."""
