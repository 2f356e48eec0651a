"""What is numbered is held by enough data servers, the sequencer's own among them.

Q1 needs no intersection: the log says what exists. But an envelope that has its number must survive the
failures that the group is made for, and whoever leads must be able to apply it.
"""

from __future__ import annotations

from antiphon.bus.messages import BusMessage, CommitSubmit, DataReport, EntryKind
from antiphon.ids import Mid
from antiphon.sim.checkers.memberships import Memberships
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World


class Copies(Checker):
    """Counts who has reported an envelope when it is first submitted with a number.

    That a report is true is another promise (I15).
    """

    promise = "Q1 copies"
    hears = (CommitSubmit, DataReport)

    def __init__(self, world: World, memberships: Memberships) -> None:
        super().__init__(world)
        self._memberships = memberships
        self._holders: dict[Mid, set[int]] = {}
        self.numbered: set[Mid] = set()
        self._seen: BusMessage | None = None

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, DataReport):
            for item in message.items:
                self._holders.setdefault(item.mid, set()).add(node)
        elif isinstance(message, CommitSubmit) and message is not self._seen:
            self._seen = message
            for entry in message.entries:
                if entry.kind is EntryKind.DATA and entry.mid not in self.numbered:
                    self.numbered.add(entry.mid)
                    self._count(node, message.epoch, entry.mid)

    def _count(self, node: int, epoch: int, mid: Mid) -> None:
        config = self._memberships.of_epoch(epoch)
        holders = [one for one in config.data_servers if one in self._holders.get(mid, ())]
        if node not in holders:
            self.fail(
                f"node {node} numbers envelope {tuple(mid)}, which its own data server has not reported"
            )
        # While servers are silent, an entry of the order may lower the quantity as far as this.
        needed = config.min_copies or config.data_quantity
        if len(holders) < needed:
            self.fail(f"envelope {tuple(mid)} is numbered, {needed} must hold it and {holders} do")
