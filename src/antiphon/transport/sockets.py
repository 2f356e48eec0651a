"""Sockets: UDP sockets with the options that the transport needs.

- large receive buffers, as far as the kernel grants them - several processes of one host in one multicast
group, each without its own echo - many datagrams per call where they are small (UDP_SEGMENT and UDP_GRO,
Linux 5.0) - how many datagrams the kernel had no room for
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from antiphon.errors import NodeError
from antiphon.transport.interface import Address
from antiphon.transport.sealing import RUN_ID_AT

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
_SO_ATTACH_FILTER: Final = 26

SEGMENT_CMSG: Final = struct.Struct("=H")
GRO_CMSG: Final = struct.Struct("=i")
GRO_SPACE: Final = socket.CMSG_SPACE(GRO_CMSG.size)


def open_unicast(address: Address, *, interface: str, hops: int, buffer_bytes: int) -> socket.socket:
    """The socket of one member: receives its unicasts, and sends everything."""
    sock = _open(address, buffer_bytes, is_shared=False)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    # Other members may be on this host.
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, hops)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return sock


def open_multicast(group: Address, *, interface: str, buffer_bytes: int) -> socket.socket:
    """A socket that receives one multicast group."""
    # Bound to the group's address: bound to any address it would receive other groups of the same port.
    sock = _open(group, buffer_bytes, is_shared=True)
    membership = socket.inet_aton(group[0]) + socket.inet_aton(interface)
    try:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except OSError as error:
        sock.close()
        raise NodeError(f"cannot join multicast group {group[0]} on {interface}: {error.strerror}") from None
    return sock


def _open(address: Address, buffer_bytes: int, *, is_shared: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise NodeError(f"cannot listen on udp {address[0]}:{address[1]}: {error.strerror}") from None
    return sock


def granted_bytes(sock: socket.socket) -> int:
    """The receive buffer that the kernel granted, in the unit in which we asked for it.

    Linux keeps, and tells, twice that, since its own book-keeping is counted, too.
    """
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return told // 2 if os.uname().sysname == "Linux" else told


def can_segment(sock: socket.socket) -> bool:
    """Does the kernel cut one large buffer into many datagrams?"""
    try:
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True


def receive_joined(sock: socket.socket) -> bool:
    """Let the kernel hand over datagrams of equal size joined; False if it cannot."""
    try:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True


def spare_own_echo(sock: socket.socket, run_id: bytes) -> bool:
    """Have the kernel drop datagrams that carry our own run id; False if it cannot.

    A classic BPF program of seven instructions. The filter only saves work: the link drops its own echo.
    """
    at = 8 + RUN_ID_AT  # behind the UDP header
    first, second = struct.unpack_from("!II", run_id)
    program = [
        (0x80, 0, 0, 0),  # A = length
        (0x35, 0, 4, at + 8),  # too short to say whose it is: keep, it is counted as garbage
        (0x20, 0, 0, at),  # A = first word of the run id
        (0x15, 0, 2, first),
        (0x20, 0, 0, at + 4),  # A = second word
        (0x15, 1, 0, second),
        (0x06, 0, 0, 0xFFFF_FFFF),  # keep
        (0x06, 0, 0, 0),  # drop
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
    except OSError:
        return False
    return True


def drops(sockets: Iterable[socket.socket]) -> int:
    """How many datagrams for these sockets the kernel dropped: no room, or filtered."""
    inodes = {str(os.fstat(sock.fileno()).st_ino) for sock in sockets if sock.fileno() >= 0}
    try:
        lines = Path("/proc/net/udp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return 0
    rows = (line.split() for line in lines)
    return sum(int(row[12]) for row in rows if row[9] in inodes)
