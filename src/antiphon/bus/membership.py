"""Membership: the configuration that is in force, by the order of this node.

A configuration counts only when the entry that orders it is known to be committed: the entry is in a ledger;
or another entry follows it, for nothing is numbered behind it before it is committed; or an epoch of that
configuration has written the log; or the log is of no epoch, which holds only committed entries.

A configuration owns a closed part of the order. Its sequencer numbers CONFIG and nothing behind it; once
CONFIG is committed, the configuration is over, and a candidate of the next one seals the next one's commit
servers, in an epoch of its own. Each of them answers only if it holds the CONFIG as committed: so the order
that any quorum goes on from is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import EntryKind
from antiphon.bus.records import LEARNED


class InForce(NamedTuple):
    """A configuration, and the number behind which a log must be committed to take part in it."""

    config: GroupConfig
    at: int


def may_follow(ours: GroupConfig, wanted: GroupConfig) -> bool:
    """Whether this is a later configuration of the same group."""
    # Lifetimes stay: a producer that was told of an expired envelope must be right for ever.
    is_same = (wanted.group, wanted.lifetime) == (ours.group, ours.lifetime)
    return is_same and wanted.config_id > ours.config_id


def may_begin(ours: GroupConfig, wanted: GroupConfig, ready: Sequence[int]) -> bool:
    """Whether the configuration can be led at once, and its state survives; `ready` nodes have caught up.

    A new node has no state yet and must be given one. If a node with a state leaves, as many as make a
    checkpoint stable have to be ready among those that stay; or all of them, if they are fewer. Otherwise a
    single node may be left that has a state, or none whose state others may trust.
    """
    voters = [server for server in wanted.commit_servers if server in ready]
    if len(voters) < max(wanted.commit_quantity, wanted.seal_quantity):
        return False
    staying = [server for server in wanted.checkpoint_servers if server in ours.checkpoint_servers]
    if len(staying) == len(ours.checkpoint_servers):
        return True
    sound = [server for server in staying if server in ready]
    return len(sound) >= min(wanted.checkpoint_quantity, len(staying))


def in_force(
    first: GroupConfig,
    base_ledger: bytes,
    log: CommitLog,
    ledger: Ledger,
    applied: int,
    log_config: int = 1,
) -> InForce:
    """The configuration that a node begins with: `first`, or a later one of its log or its ledger.

    `log_config` is the configuration that wrote the log.
    """
    assert first.config_id == 1, "a later configuration than the first is an entry of the order"
    best = InForce(first, 0)
    best = _later(best, Ledger.decode(base_ledger).config, 0)
    for entry in log.between(log.base, log.last):
        if entry.kind is EntryKind.CONFIG:
            is_known = entry.last < log.last or entry.detail == ledger.config or log_config == LEARNED
            if is_known or log_config >= GroupConfig.decode(entry.detail).config_id:
                best = _later(best, entry.detail, entry.last)
    return _later(best, ledger.config, applied)


def tells(log: CommitLog, at: int, config: GroupConfig, log_config: int) -> bool:
    """Whether a later run that finds this log would go by `config`, whose entry is `at` (`in_force`)."""
    if log.last == at > log.base:
        return log_config == LEARNED or log_config >= config.config_id
    return max(log.base + 1, log.last) > at


def _later(known: InForce, encoded: bytes, at: int) -> InForce:
    if not encoded:
        return known
    config = GroupConfig.decode(encoded)
    rank = (config.generation, config.config_id)
    return InForce(config, at) if rank > (known.config.generation, known.config.config_id) else known
