"""Atlas: the places of intact copies, so that everything destroyed still exists once.

A group promises to survive the loss of a minority, one loss after the other. So each loss is allowed here
only if enough is left: votes, envelopes, and a state to go on from. Then liveness can be required in every
run, and only the machines' own mistakes can cost it.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.bus.group import GroupConfig
from antiphon.ids import Mid
from antiphon.sim.bus.runner import BusRunner, Hall


class Atlas:
    """Looks at all disks of a run at once."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        # The last proposed configuration: until it rules, the needed nodes are unknown.
        self.proposed = 1

    @property
    def config(self) -> GroupConfig:
        """The newest configuration of any replica."""
        return self._hall.newest

    @property
    def is_changing(self) -> bool:
        """Is there a configuration, or a proposal of one, in which nothing has been committed yet?

        Until then a lost disk is missed in the former configuration, too.
        """
        return max(self.proposed, self.config.config_id) > self._hall.committed_in()

    def is_well(self, node: int) -> bool:
        """Has this node the listed disk, and is the disk whole?"""
        runner = self._hall.runners[node]
        listed = self.config.disk_of(node)
        return runner.disk is not None and runner.disk_id == listed and not runner.is_damaged

    def are_all_well(self) -> bool:
        return all(self.is_well(node) for node in self.config.commit_servers)

    def may_lose_all(self, victim: BusRunner) -> bool:
        """Can the group do without this node's disk?"""
        config = self.config
        voters = config.commit_servers
        if victim.node_id not in voters or self.is_changing:
            return False
        well = [node for node in voters if node != victim.node_id and self.is_well(node)]
        if len(well) < max(config.commit_quantity, config.seal_quantity):
            return False
        keepers = [node for node in config.data_servers if node in well]
        return self.has_state(keepers) and self._has_envelopes(keepers, [victim.node_id])

    def may_change_to(self, keepers: Iterable[int]) -> bool:
        """Can these data servers go on with the channel?"""
        keepers = tuple(keepers)
        config = self.config
        leaving = [node for node in config.data_servers if node not in keepers]
        staying = [node for node in keepers if node in config.data_servers]
        # An envelope that is numbered until then is held by a server that stays.
        is_held = len(leaving) < config.data_quantity
        return is_held and self.has_state(staying) and self._has_envelopes(keepers, leaving)

    def has_state(self, keepers: Iterable[int]) -> bool:
        """Has one of these nodes a state that reaches the logs of all?"""
        base = self._base()
        for node in keepers:
            runner = self._hall.runners[node]
            if runner.application is not None and runner.application.applied >= base:
                return True
        return False

    def _base(self) -> int:
        return max([image.base for image in self._hall.images.values()], default=0)

    def elsewhere(self, victim: BusRunner) -> set[Mid]:
        """The envelopes that another sound data server of the configuration holds."""
        if self.is_changing:
            return set()
        keepers = [node for node in self.config.data_servers if node != victim.node_id and self.is_well(node)]
        return self._held(keepers)

    def _has_envelopes(self, keepers: Iterable[int], leaving: Iterable[int]) -> bool:
        """Do these nodes hold all numbered envelopes of the others?"""
        missing = self._held(leaving) - self._held(keepers)
        return not missing & self._hall.numbered

    def _held(self, nodes: Iterable[int]) -> set[Mid]:
        held: set[Mid] = set()
        for node in nodes:
            image = self._hall.images.get(node)
            if image is not None:
                held |= image.mids - self._hall.runners[node].unreadable
        return held
