"""Sealing: every datagram is encrypted, names its sender, and cannot be forged or moved to another stream.

    magic u16, version u8, key id u8, sender u16, cluster id and run id 16 bytes each, stream u32,
    counter u64                                                  | encrypted body | tag 16 bytes
    `- associated data: all but the counter -'
                                        nonce: stream and counter

    SEA1  A body that `open` returns was sealed by a holder of the group key, for this cluster, as this
          sender, run, stream and counter.
    SEA2  No nonce is used twice with a key. A key belongs to one run of one sender:

              key = HKDF-SHA-256(group key, info = "antiphon bus 1" ‖ cluster id ‖ key id ‖ sender ‖ run id)

          (RFC 5869); run ids are random, and within a run each stream counts from zero. The stream is the
          upper part of the nonce, so that streams have counters of their own: a gap in one is a loss.

`replay.py` tells whether a datagram came before, `members.py` whether the run is the sender's present one.
The cipher is AES-256-GCM.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from antiphon.transport.keys import KEY_BYTES, GroupKeys
from antiphon.wire.primitives import Buffer

MAGIC: Final = 0xA972
VERSION: Final = 1

HEAD: Final = Struct("<HBBH16s16sIQ")
RUN_ID_AT: Final = 22
_STREAM_AT: Final = 38
_COUNTER_AT: Final = 42
_PREFIX = Struct("<HBBH16s16sI")
_COUNTER = Struct("<Q")
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = HEAD.size + TAG_BYTES

_INFO: Final = b"antiphon bus 1"
_NAMES = Struct("<16sBH16s")

# Streams of one sender. Talk about repairs and proofs has streams of its own, since it is never repaired.
LANE: Final = 0  # + lane
LANE_TALK: Final = 0x10  # + lane
UNICAST: Final = 0x1_0000  # + the node it is for
UNICAST_TALK: Final = 0x2_0000  # + the node it is for


def talk_of(stream: int) -> int:
    """The stream beside `stream` in which members talk about it."""
    return stream + (UNICAST_TALK - UNICAST if stream >= UNICAST else LANE_TALK)


def claimed_sender(datagram: Buffer) -> int:
    """The sender that a datagram names; its seal is not verified yet."""
    return int.from_bytes(datagram[4:6], "little")


def run_key(group_key: bytes, cluster_id: bytes, key_id: int, sender: int, run_id: bytes) -> bytes:
    """The key of one run of one sender."""
    info = _INFO + _NAMES.pack(cluster_id, key_id, sender, run_id)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(group_key)


class Sealer:
    """Seals the streams of this run."""

    def __init__(self, keys: GroupKeys, cluster_id: bytes, sender: int, run_id: bytes) -> None:
        self._names = (cluster_id, sender, run_id)
        self._streams: list[SealedStream] = []
        self.use(keys)

    def use(self, keys: GroupKeys) -> None:
        """Seal with this group's current key from now on. Counters go on, so SEA2 holds."""
        cluster_id, sender, run_id = self._names
        self._key_id = keys.current
        self._cipher = AESGCM(
            run_key(keys.by_id[keys.current], cluster_id, keys.current, sender, run_id),
        )
        for stream in self._streams:
            stream.use(self._cipher, self._prefix(stream.stream))

    def stream(self, stream: int) -> SealedStream:
        """Begin a stream; there is never a second one of this number."""
        assert all(stream != known.stream for known in self._streams), "a stream was begun twice"
        begun = SealedStream(stream)
        begun.use(self._cipher, self._prefix(stream))
        self._streams.append(begun)
        return begun

    def _prefix(self, stream: int) -> bytes:
        cluster_id, sender, run_id = self._names
        return _PREFIX.pack(MAGIC, VERSION, self._key_id, sender, cluster_id, run_id, stream)


class SealedStream:
    """One stream of a sender: its datagrams are numbered 0, 1, 2, …"""

    __slots__ = ("_cipher", "_prefix", "next", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.next = 0

    def use(self, cipher: AESGCM, prefix: bytes) -> None:
        self._cipher = cipher
        self._prefix = prefix

    def seal(self, body: bytes) -> tuple[bytes, bytes]:
        """The next datagram, as head and rest."""
        head = self._prefix + _COUNTER.pack(self.next)
        self.next += 1
        return head, self._cipher.encrypt(head[_STREAM_AT:], body, self._prefix)


class Opener:
    """Opens the datagrams of one run of another member."""

    __slots__ = ("_ciphers", "_names")

    def __init__(self, cluster_id: bytes, sender: int, run_id: bytes) -> None:
        self._names = (cluster_id, sender, run_id)
        self._ciphers: dict[int, AESGCM] = {}

    def forget(self) -> None:
        self._ciphers.clear()

    def open(self, keys: GroupKeys, key_id: int, datagram: Buffer) -> bytes | None:
        """The body of a datagram whose head names this run; None if it was not sealed with that key."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            cluster_id, sender, run_id = self._names
            group_key = keys.by_id.get(key_id)
            if group_key is None:
                return None
            cipher = AESGCM(run_key(group_key, cluster_id, key_id, sender, run_id))
            self._ciphers[key_id] = cipher
        view = memoryview(datagram)
        try:
            return cipher.decrypt(view[_STREAM_AT : HEAD.size], view[HEAD.size :], view[:_COUNTER_AT])
        except InvalidTag:
            return None
