"""Details: the few facts of log entries that have no payload.

PRODUCER_OPEN      pid u16, run id 16 bytes
PRODUCER_FENCE     pid u16, pe u64, term u64
CHECKPOINT_STABLE  n u64, digest 16 bytes, holders: a count u16 and node ids u16
PRIMARY_CLAIM      nothing: the epoch and the node of its mid are the term and the primary
QUANTITY           data quantity u16
CONFIG             the whole configuration, encoded
VOID               first number u64 of an entry whose payload is lost for good
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer, Reader

_OPEN = Struct("<H16s")
_FENCE = Struct("<HQQ")
_STABLE = Struct("<Q16sH")
_NODE = Struct("<H")
_QUANTITY = Struct("<H")
_VOID = Struct("<Q")


class OpenDetail(NamedTuple):
    """The node that opened as a producer, and its run."""

    pid: int
    run_id: bytes

    def encode(self) -> bytes:
        return _OPEN.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> OpenDetail:
        if len(data) != _OPEN.size:
            raise ProtocolError(f"the detail of a PRODUCER_OPEN has {len(data)} bytes")
        return cls(*_OPEN.unpack(data))


class FenceDetail(NamedTuple):
    """The run of a producer that is over, as the primary of a term proposes."""

    pid: int
    pe: int
    term: int

    def encode(self) -> bytes:
        return _FENCE.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> FenceDetail:
        if len(data) != _FENCE.size:
            raise ProtocolError(f"the detail of a PRODUCER_FENCE has {len(data)} bytes")
        return cls(*_FENCE.unpack(data))


class StableDetail(NamedTuple):
    """A checkpoint that enough servers hold, with its digest and its holders."""

    n: int
    digest: bytes
    holders: tuple[int, ...]

    def encode(self) -> bytes:
        nodes = b"".join([_NODE.pack(node) for node in self.holders])
        return _STABLE.pack(self.n, self.digest, len(self.holders)) + nodes

    @classmethod
    def decode(cls, data: Buffer) -> StableDetail:
        reader = Reader(data)
        n, digest, count = _STABLE.unpack(reader.raw(_STABLE.size))
        holders = tuple([reader.u16() for _ in range(count)])
        reader.finish()
        return cls(n, digest, holders)


class QuantityDetail(NamedTuple):
    """How many data servers must hold an envelope before it is numbered, from now on."""

    data_quantity: int

    def encode(self) -> bytes:
        return _QUANTITY.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> QuantityDetail:
        if len(data) != _QUANTITY.size:
            raise ProtocolError(f"the detail of a QUANTITY has {len(data)} bytes")
        return cls(*_QUANTITY.unpack(data))


class VoidDetail(NamedTuple):
    """The first number of an entry that goes on without its payload."""

    first: int

    def encode(self) -> bytes:
        return _VOID.pack(*self)

    @classmethod
    def decode(cls, data: Buffer) -> VoidDetail:
        if len(data) != _VOID.size:
            raise ProtocolError(f"the detail of a VOID has {len(data)} bytes")
        return cls(*_VOID.unpack(data))
