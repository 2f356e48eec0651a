"""GroupConfig: the nodes of a channel, their roles, the quantities, the limits and the timers.

A group fulfils the conditions of the protocol's proof, and decode of any bytes gives such a group or
`ProtocolError`. An entry of the log changes the configuration of a running channel; the whole group is in
that entry, limits and timers too, so that all nodes go by the same ones.

A quantity is how many servers of a kind must have agreed. Safety rests on two of them alone: commit_quantity
+ seal_quantity > commit servers, so that a candidate that seals an epoch meets a server that knows of every
commit before it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Final

from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer, Reader, Writer

MS: Final = 1_000_000
"""Nanoseconds in a millisecond. Machines count in nanoseconds, people configure in milliseconds."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20

DISK_ID_BYTES: Final = 16
NO_DISK: Final = bytes(DISK_ID_BYTES)
"""The disk id of a node without a disk: a client manager."""

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    group: str
    config_id: int = 1
    # Rises when an operator forced a new group out of one that lost its quorum.
    generation: int = 0
    nodes: tuple[int, ...]
    # Parallel to the nodes: the disk with which each may vote and report. Empty or zeros: not compared.
    disk_ids: tuple[bytes, ...] = ()
    commit_servers: tuple[int, ...]
    data_servers: tuple[int, ...]
    checkpoint_servers: tuple[int, ...]
    # The nodes that may stand for sequencer, the lowest rank first.
    candidates: tuple[int, ...]

    data_quantity: int
    commit_quantity: int
    seal_quantity: int
    checkpoint_quantity: int
    # The copies with which numbering goes on while other data servers are silent; 0: data_quantity.
    min_copies: int = 0
    # How many failed servers the data and the checkpoints must survive.
    data_failures: int = 0
    checkpoint_failures: int = 0

    heartbeat_ms: int = 50
    suspicion_ms: int = 500
    rank_delay_ms: int = 150
    suspicion_spread_ms: int = 100
    check_ms: int = 500
    rereport_ms: int = 200
    retransmit_ms: int = 100
    tick_ms: int = 1_000
    fetch_delay_ms: int = 10
    fetch_delay_ms_max: int = 1_000

    # How often a node sends its presence, and after how long a silence its producer is fenced.
    presence_ms: int = 200
    silence_ms: int = 2_000
    # After how long a silence of data servers numbering goes on with fewer copies, if `min_copies` allows it.
    copies_silence_ms: int = 500
    # How many numbers a candidate may lag behind the highest it heard of; when nobody led for
    # `leaderless_ms`, lagging does not count. The sequencer waits for a replica that lags more, for
    # `laggard_wait_ms` at most.
    lag_max: int = 262_144
    leaderless_ms: int = 10_000
    laggard_wait_ms: int = 2_000

    # L: an envelope whose ts is further back than so many numbers will never be numbered.
    lifetime: int = 1 << 40
    checkpoint_entries: int = 100_000
    checkpoint_bytes: int = 64 * MIB
    # A checkpoint report is repeated with every so many heartbeats until its checkpoint is stable.
    checkpoint_report_beats: int = 20
    # A joiner gets a checkpoint in pieces of this length, and the envelopes it refers to in answers of about
    # that many bytes. While the joiner asks, and for so long after it last did, the holder keeps both.
    checkpoint_piece_bytes: int = 256 * KIB
    stored_bytes_max: int = 1 * MIB
    checkpoint_hold_ms: int = 10_000
    submit_entries_max: int = 256
    report_items_max: int = 1_024
    fetch_entries_max: int = 1_024
    fetch_mids_max: int = 64
    # Payload bytes in one answer, unless a single one is larger.
    fetch_bytes_max: int = 1 * MIB
    # How many entries may be numbered and not committed: a window of a producer's small envelopes fits.
    window_entries: int = 2_048
    # How much a producer may have under way; a few windows have to fit into a receive buffer of 4 MiB.
    producer_window_bytes: int = 2 * MIB
    # How much a data server keeps for one producer before it drops more; above any honest window.
    producer_quota_bytes: int = 16 * MIB
    envelope_bytes_max: int = 2 * MIB
    # Payloads kept in memory between arrival and delivery. Beyond that they are read from the journal.
    cached_bytes_max: int = 32 * MIB
    # 1: an envelope is numbered when it arrives, where the group allows it (`numbers_on_arrival`). 0: it is
    # numbered when enough data servers hold it durably.
    one_round: int = 1

    @classmethod
    def of(cls, group: str, nodes: tuple[int, ...], **settings: Any) -> GroupConfig:
        """All roles on all nodes, ranked as listed, with the default quantities.

        >>> GroupConfig.of("main", (1, 2, 3)).commit_quantity
        2
        """
        size = len(nodes)
        quorum = size // 2 + 1
        defaults: dict[str, Any] = {
            "commit_servers": nodes,
            "data_servers": nodes,
            "checkpoint_servers": nodes,
            "candidates": nodes,
            "data_quantity": min(size, 2),
            "commit_quantity": quorum,
            "seal_quantity": quorum,
            "checkpoint_quantity": min(size, 2),
        }
        return cls(group=group, nodes=nodes, **{**defaults, **settings})

    def disk_of(self, node: int) -> bytes:
        """The disk that a node must have to vote; empty if it is not compared."""
        if not self.disk_ids or node not in self.nodes:
            return b""
        disk_id = self.disk_ids[self.nodes.index(node)]
        return disk_id if any(disk_id) else b""

    @property
    def numbers_on_arrival(self) -> bool:
        """May a sequencer number what is not durable yet?

        Then an acknowledgement of a commit server says that its node holds the envelope, too: every commit
        server is a data server, and as many acknowledge as copies are wanted.
        """
        is_both = set(self.commit_servers) <= set(self.data_servers)
        return bool(self.one_round) and is_both and self.data_quantity <= self.commit_quantity

    @property
    def rest_beats(self) -> int:
        """How many times `heartbeat_ms` lie between two heartbeats of a sequencer at rest.

        Heartbeats stay as frequent as presences, and two of them in a row, or of their answers, may be lost
        before a node suspects the sequencer, or the sequencer misses its quorum or a copy.
        """
        limit_ms = min(self.suspicion_ms, self.check_ms, self.copies_silence_ms)
        return max(1, min(self.presence_ms, limit_ms // 3) // max(1, self.heartbeat_ms))

    @property
    def unserved_ms(self) -> int:
        """How long a channel without a message of a primary is not yet unserved.

        A change of primary takes `suspicion_ms`, the delay of the ranks and a few rounds of messages.
        """
        return 2 * self.suspicion_ms

    @property
    def sure_ms(self) -> int:
        """How long a client manager may rely on a primary's word that its deliveries are still its own.

        A primary gives them to others no sooner than `suspicion_ms` after a quorum last heard the former
        primary, or than `silence_ms` after it last heard the client manager. Half of that is for the client
        manager, a quarter for its word to a client (`sure_ms` of Welcome), the rest for the way.
        """
        return max(1, min(self.silence_ms, self.suspicion_ms) // 2)

    @property
    def digest(self) -> bytes:
        """Equal for equal groups: nodes compare it."""
        return blake2b(self.encode(), digest_size=16).digest()

    def encode(self) -> bytes:
        """Version, group, the lists, then all numbers in the order of the fields."""
        writer = Writer()
        writer.u8(_VERSION)
        writer.text(self.group)
        for name in _NODE_LISTS:
            servers = getattr(self, name)
            writer.count(len(servers))
            for node in servers:
                writer.u16(node)
        writer.count(len(self.disk_ids))
        for disk_id in self.disk_ids:
            writer.raw(disk_id)
        writer.count(len(_NUMBERS))
        for name in _NUMBERS:
            writer.u64(getattr(self, name))
        return writer.join()

    @classmethod
    def decode(cls, data: Buffer) -> GroupConfig:
        reader = Reader(data)
        version = reader.u8()
        if version != _VERSION:
            raise ProtocolError(f"a configuration of version {version}")
        values: dict[str, Any] = {"group": reader.text()}
        for name in _NODE_LISTS:
            values[name] = tuple([reader.u16() for _ in range(reader.count(2))])
        disks = reader.count(DISK_ID_BYTES)
        values["disk_ids"] = tuple([bytes(reader.raw(DISK_ID_BYTES)) for _ in range(disks)])
        if reader.count(8) != len(_NUMBERS):
            raise ProtocolError(f"a configuration without its {len(_NUMBERS)} numbers")
        for name in _NUMBERS:
            values[name] = reader.u64()
        reader.finish()
        try:
            return cls(**values)
        except AssertionError as error:
            raise ProtocolError(f"a configuration that cannot work: {error}") from None

    def __post_init__(self) -> None:
        for role, servers in (
            ("commit servers", self.commit_servers),
            ("data servers", self.data_servers),
            ("checkpoint servers", self.checkpoint_servers),
            ("candidates", self.candidates),
        ):
            assert len(set(servers)) == len(servers), f"a node is listed twice among the {role}"
            assert all(node in self.nodes for node in servers), f"one of the {role} is no node of the group"
        _require_quantity("commit quantity", self.commit_quantity, len(self.commit_servers))
        _require_quantity("seal quantity", self.seal_quantity, len(self.commit_servers))
        _require_quantity("data quantity", self.data_quantity, len(self.data_servers))
        _require_quantity("checkpoint quantity", self.checkpoint_quantity, len(self.checkpoint_servers))
        assert self.commit_quantity + self.seal_quantity > len(self.commit_servers), (
            "a seal quorum must meet every commit quorum"
        )
        assert self.data_quantity >= self.data_failures + 1, "one copy of the data must survive the failures"
        assert self.checkpoint_quantity >= self.checkpoint_failures + 1, (
            "one copy of a stable checkpoint must survive the failures"
        )
        for node in self.candidates:
            assert node in self.commit_servers, "a sequencer must be one of the commit servers"
            assert node in self.data_servers, "a sequencer numbers only what its own data server holds"
        assert self.min_copies <= self.data_quantity, "fewer copies than usual are not more"
        assert not self.disk_ids or len(self.disk_ids) == len(self.nodes), "each node has one disk"
        for disk_id in self.disk_ids:
            assert len(disk_id) == DISK_ID_BYTES, f"a disk id of {len(disk_id)} bytes"
        assert self.lifetime >= 1, "an envelope must live for at least one number"
        assert self.window_entries >= 1, "a sequencer that may number nothing is none"


def _require_quantity(name: str, quantity: int, servers: int) -> None:
    assert 1 <= quantity <= servers, f"a {name} of {quantity} cannot be reached by {servers} servers"


_NODE_LISTS: Final = ("nodes", "commit_servers", "data_servers", "checkpoint_servers", "candidates")
_NUMBERS: Final = tuple(
    [one.name for one in fields(GroupConfig) if one.name not in ("group", "disk_ids", *_NODE_LISTS)]
)
