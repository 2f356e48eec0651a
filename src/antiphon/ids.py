"""Ids: epochs, envelope ids, unique ids and message ids.

An *epoch* is one reign; its number contains the node that led, so that two nodes never claim the same one. A
*Mid* names one envelope on a channel. A 128-bit id from an `IdSource` names a session (or connection) for all
time; a message id adds the channel and the number that the client counted within it.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from antiphon.errors import InvalidName

NODE_MAX: Final = 0xFFFF
U32_MAX: Final = 0xFFFF_FFFF
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_COUNTER_MAX: Final = (1 << 48) - 1

COUNT_MAX = U32_MAX
"""So many ids have one port number in common."""


def make_epoch(counter: int, node: int) -> int:
    """The epoch `node` claims as the `counter`-th; later counters give greater epochs."""
    assert 0 <= counter <= _COUNTER_MAX, f"epoch counter {counter} does not fit 48 bits"
    assert 0 <= node <= NODE_MAX, f"node id {node} does not fit 16 bits"
    return counter << 16 | node


def epoch_counter(epoch: int) -> int:
    return epoch >> 16


def epoch_node(epoch: int) -> int:
    return epoch & NODE_MAX


class Mid(NamedTuple):
    """The id of one envelope: the node that sent it, its run, its count there."""

    pid: int
    pe: int
    pseq: int


MID_STRUCT: Final = struct.Struct("<HQQ")
"""The bytes of a `Mid`, on the wire and on disk."""


class IdSource:
    """Ids that no other node and no other run of this node gives: 128 bits, never 0.

    site 16 | address 32 | port 16 | start 32 | counter 32, the site on top. The caller gives the start time:
    this class has no clock. When the counter has run out the next port number has a count of its own; the
    other parts are those of this run alone, whatever the port. So a run has 2 to the power of 48 ids.
    """

    __slots__ = ("_counter", "_first_number", "_first_port", "_node", "_port", "_start_s")

    def __init__(self, site: int, address: int, port: int, start_s: int) -> None:
        assert 0 <= site <= 0xFFFF, f"site id {site} does not fit 16 bits"
        assert 0 <= address <= U32_MAX, f"node address {address} does not fit 32 bits"
        assert 0 <= port <= 0xFFFF, f"port {port} does not fit 16 bits"
        assert 0 <= start_s <= U32_MAX, f"start time {start_s} does not fit 32 bits"
        self._node = site << 32 | address
        self._first_port = self._port = port
        self._start_s = start_s
        self._counter = 0
        self._first_number = ((address << 16 | port) ^ start_s) & U32_MAX

    @property
    def first_number(self) -> int:
        """The first number of this run's questions: 64 bits, almost certainly far from those of other runs.

        So an answer to a former run is not taken for an answer to this one.
        """
        return self._first_number << 32 | 1

    def next(self) -> int:
        if self._counter >= COUNT_MAX:
            self._begin_next_port()
        self._counter += 1
        return (self._node << 16 | self._port) << 64 | self._start_s << 32 | self._counter

    def next_key(self) -> int:
        """64 bits that no other life of this node gives; those of a life rise.

        Each port counts as one later start. A later life has it too, if this one has given all ids of a port
        and the life draws the same first port, which is one in 65,536.
        """
        self.next()
        ports = (self._port - self._first_port) & 0xFFFF
        life = (self._first_port << 16) + self._start_s
        return (life + ports << 32 | self._counter) & U64_MAX

    def _begin_next_port(self) -> None:
        self._port = (self._port + 1) & 0xFFFF
        assert self._port != self._first_port, "this run has given every id that it has"
        self._counter = 0


class MessageId(NamedTuple):
    """A message id in its parts: the session that sent it, the channel, the number there."""

    session: int
    channel: str
    number: int


def format_message_id(session: int, channel: str, number: int) -> str:
    """The id as the application sees it; JMS wants the `ID:` in front.

    >>> format_message_id(0xA1, "main", 7)
    'ID:000000000000000000000000000000a1-7@main'
    """
    return f"ID:{session:032x}-{number}@{channel}"


# One spelling per id: lower case, no leading zeros in the number.
_MESSAGE_ID = re.compile(r"ID:([0-9a-f]{32})-(0|[1-9][0-9]{0,19})@(.+)", re.DOTALL)


def parse_message_id(text: str) -> MessageId:
    match = _MESSAGE_ID.fullmatch(text)
    if match is None or int(match[2]) > U64_MAX:
        raise InvalidName(f"{text[:80]!r} is not a message id, ID:<32 hex digits>-<number>@<channel>")
    return MessageId(session=int(match[1], 16), channel=match[3], number=int(match[2]))
