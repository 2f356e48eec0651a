"""Acknowledgements: one says what several would.

Where it sits
    commit_server  ->  ACKNOWLEDGEMENTS

What it promises
    P1  Of the acknowledgements that one step gives to one sequencer in one epoch, the highest is left, in its
        place.

What it leaves to others
    Whether an acknowledgement is true is the commit server's business.
"""

from __future__ import annotations

from antiphon.bus.effects import RoleEffect, Send
from antiphon.bus.messages import CommitAcknowledge


def merge_acknowledgements(effects: list[RoleEffect]) -> list[RoleEffect]:
    """Acknowledgements are cumulative: of those to one sequencer in one epoch the highest says it all."""
    if len(effects) < 2:
        return effects
    highest: dict[tuple[int, int], tuple[int, int]] = {}
    dropped: set[int] = set()
    for at, effect in enumerate(effects):
        if type(effect) is Send and type(effect.message) is CommitAcknowledge:
            key = (effect.to, effect.message.epoch)
            last, other = highest.get(key, (-1, -1))
            if effect.message.last >= last:
                highest[key] = (effect.message.last, at)
                dropped.add(other)
            else:
                dropped.add(at)
    if dropped <= {-1}:
        return effects
    return [effect for at, effect in enumerate(effects) if at not in dropped]
