"""A channel whose state is captured and restored after every entry, and must not be changed by that."""

from __future__ import annotations

from antiphon.bus.messages import EntryKind
from antiphon.ids import Mid
from antiphon.sim.checkers.restores import what_a_restore_changes
from tests.unit.message_manager.channel import Channel


class RestoredChannel(Channel):
    """Compares after every entry, derived parts included."""

    def _append(
        self, kind: EntryKind, mid: Mid, count: int, payload: bytes | None, detail: bytes = b""
    ) -> int:
        first = super()._append(kind, mid, count, payload, detail)
        changed = what_a_restore_changes(self.manager.state)
        assert changed is None, f"after {self.manager.applied}: {changed}"
        return first
