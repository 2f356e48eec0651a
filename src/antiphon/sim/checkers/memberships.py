"""Memberships: which configuration an epoch belongs to, and with it who counts and how many must agree.

An epoch is sealed in one configuration and stays in it: a change of the configuration ends the epoch. So
whatever is asked about quantities is asked by epoch, and a checker never has to know when a group changed.
"""

from __future__ import annotations

from antiphon.bus.group import GroupConfig


class Memberships:
    """All configurations that a group has had in a run."""

    def __init__(self, config: GroupConfig) -> None:
        self._configs: dict[int, GroupConfig] = {}
        self._config_of: dict[int, int] = {}
        self.add(config)

    def add(self, config: GroupConfig) -> None:
        """The group goes on in this one."""
        self._configs[config.config_id] = config
        self.newest = config

    def bind(self, epoch: int, config_id: int) -> GroupConfig | None:
        """An epoch is sealed in this configuration; None if there is none, or it was sealed in another."""
        if self._config_of.setdefault(epoch, config_id) != config_id:
            return None
        return self._configs.get(config_id)

    def of_epoch(self, epoch: int) -> GroupConfig:
        """The configuration of an epoch."""
        config_id = self._config_of.get(epoch)
        return self.newest if config_id is None else self._configs[config_id]
