"""Client ids: which connection has which, in the system channel only.

A claim lives as long as its connection; while that is lost, `owner` is NOBODY.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.message_manager.state.sessions import NOBODY, Owner
from antiphon.wire.primitives import Reader, Writer


class Claim:
    """A client id of a connection; a connection that comes back claims in a higher generation."""

    __slots__ = ("client_id", "connection", "generation", "owner")

    def __init__(self, client_id: str, connection: int, generation: int, owner: Owner) -> None:
        self.client_id = client_id
        self.connection = connection
        self.generation = generation
        # The run of the client manager that has the connection.
        self.owner = owner

    @property
    def is_lost(self) -> bool:
        return self.owner == NOBODY


class ClientIds:
    __slots__ = ("_claims",)

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim]:
        """By client id, so that the order is the same on every replica."""
        return iter([self._claims[id] for id in sorted(self._claims)])

    def get(self, client_id: str) -> Claim | None:
        return self._claims.get(client_id)

    def add(self, claim: Claim) -> None:
        assert claim.client_id not in self._claims, f"client id {claim.client_id!r} was given twice"
        self._claims[claim.client_id] = claim

    def free(self, client_id: str) -> None:
        del self._claims[client_id]

    def detach(self, pid: int, before: int) -> list[Claim]:
        """Mark the connections of a client manager's runs before `before` as lost; returns their claims."""
        lost = [one for one in self if one.owner.pid == pid and 0 < one.owner.pe < before]
        for claim in lost:
            claim.owner = NOBODY
        return lost

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.count(len(self._claims))
        for claim in self:
            writer.text(claim.client_id)
            writer.u128(claim.connection)
            writer.u32(claim.generation)
            writer.u16(claim.owner.pid)
            writer.u64(claim.owner.pe)

    @classmethod
    def read(cls, reader: Reader) -> ClientIds:
        ids = cls()
        for _ in range(reader.count(2 + 16 + 4 + 2 + 8)):
            client_id, connection, generation = reader.text(), reader.u128(), reader.u32()
            ids.add(Claim(client_id, connection, generation, Owner(reader.u16(), reader.u64())))
        return ids
