"""Codec: the bytes of every bus message.

COD1  decode(encode(m)) equals m, and decode of any bytes gives a message or `ProtocolError`, in time and
      memory linear in their number.
COD2  Entries of one message are contiguous; enumerations hold known values. A role may rely on it.

    magic u16, version u8, type u8, config id u32, sender u16, run id and disk id 16 bytes each,
    group text, fields

The fields of a message are written in the order of its class (`messages.py`). The transport checks the
sender, the roles check whether it may say this.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from antiphon.bus.group import NO_DISK
from antiphon.bus.messages import BusMessage
from antiphon.bus.schema import KINDS
from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Buffer, Reader, Writer, encode_text, pack

MAGIC: Final = 0xA971
VERSION: Final = 19

_HEAD = Struct("<HBBIH16s16s")
_START: Final = pack(Struct("<HB"), MAGIC, VERSION)
_HEADERS_MAX: Final = 1_024


class Header(NamedTuple):
    """The sender with its run and its disk, and the group with its configuration."""

    group: str
    config_id: int
    sender: int
    run_id: bytes
    disk_id: bytes = NO_DISK


_Write = Callable[[Writer, Any], None]
_Read = Callable[[Reader], Any]
_WRITERS: Final[dict[type[BusMessage], tuple[int, _Write]]] = {
    message: (kind.number, kind.format.write) for message, kind in KINDS.items()
}
_READERS: Final[dict[int, _Read]] = {kind.number: kind.format.read for kind in KINDS.values()}


def encode_parts(
    message: BusMessage,
    group: str,
    config_id: int,
    sender: int,
    run_id: bytes,
    disk_id: bytes = NO_DISK,
) -> list[Buffer]:
    """The message as buffers to be sent one after the other; payloads are not copied."""
    number, write = _WRITERS[type(message)]
    writer = Writer()
    writer.raw(_encode_head(number, Header(group, config_id, sender, run_id, disk_id)))
    write(writer, message)
    return writer.parts


def _encode_head(number: int, header: Header) -> bytes:
    group, config_id, sender, run_id, disk_id = header
    if len(run_id) != 16 or len(disk_id) != 16:
        raise ValueError(f"ids have 16 bytes, not {len(run_id)} and {len(disk_id)}")
    fixed = pack(_HEAD, MAGIC, VERSION, number, config_id, sender, run_id, disk_id)
    return fixed + encode_text(group)


def encode(
    message: BusMessage,
    group: str,
    config_id: int,
    sender: int,
    run_id: bytes,
    disk_id: bytes = NO_DISK,
) -> bytes:
    return b"".join(encode_parts(message, group, config_id, sender, run_id, disk_id))


class Encoder:
    """`encode_parts` with a header that is written once."""

    __slots__ = ("_kinds",)

    def __init__(self, header: Header) -> None:
        self._kinds = {
            kind: (_encode_head(number, header), write) for kind, (number, write) in _WRITERS.items()
        }

    def encode_parts(self, message: BusMessage) -> list[Buffer]:
        """The message as buffers to be sent one after the other; payloads are not copied."""
        head, write = self._kinds[type(message)]
        writer = Writer()
        writer.parts.append(head)
        write(writer, message)
        return writer.parts


class Decoder:
    """`decode` that reads the header of each sender once."""

    __slots__ = ("_headers",)

    def __init__(self) -> None:
        self._headers: dict[bytes, Header] = {}

    def decode(self, data: Buffer) -> tuple[Header, BusMessage]:
        """Header and message of exactly these bytes, or `ProtocolError`."""
        end = _HEAD.size + 2 + int.from_bytes(data[_HEAD.size : _HEAD.size + 2], "little")
        # All of it but the type, which stands behind magic and version.
        head = bytes(data[4:end])
        header = self._headers.get(head)
        if header is None or data[:3] != _START:
            header, message = decode(data)
            if len(self._headers) >= _HEADERS_MAX:
                self._headers.clear()
            self._headers[head] = header
            return header, message
        read = _READERS.get(data[3])
        if read is None:
            raise ProtocolError(f"a bus message of type {data[3]}")
        reader = Reader(data, end)
        message = read(reader)
        reader.finish()
        return header, message


def decode(data: Buffer) -> tuple[Header, BusMessage]:
    """Header and message of exactly these bytes, or `ProtocolError`."""
    reader = Reader(data)
    magic, version, number, config_id, sender, run_id, disk_id = _HEAD.unpack(reader.raw(_HEAD.size))
    if magic != MAGIC:
        raise ProtocolError("these bytes are no bus message")
    if version != VERSION:
        raise ProtocolError(f"a bus message of version {version}; this node speaks version {VERSION}")
    read = _READERS.get(number)
    if read is None:
        raise ProtocolError(f"a bus message of type {number}")
    header = Header(reader.text(), config_id, sender, run_id, disk_id)
    message: BusMessage = read(reader)
    reader.finish()
    return header, message
