"""Keys: the secret that all members of a cluster share.

`sealing.py` derives a key for each run of each member from it. A holder of the group key can speak as any
member: keep it secret, and change it when a member is to be shut out.

To change the key without a stop, add the new key to every node's file below the old one (all accept both),
then put it first (all begin to use it), then take the old one away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from antiphon.errors import NodeError

KEY_BYTES: Final = 32
KEYS_MAX: Final = 2


@dataclass(frozen=True, slots=True, repr=False)
class GroupKeys:
    """One key, or two while the key is being changed. The first is used, each is accepted."""

    by_id: dict[int, bytes]
    current: int

    @classmethod
    def of(cls, keys: Iterable[tuple[int, bytes]]) -> GroupKeys:
        """Keys with their ids, the one to be used first."""
        listed = list(keys)
        by_id = dict(listed)
        if not 1 <= len(listed) <= KEYS_MAX or len(by_id) != len(listed):
            raise NodeError("a group has one key, or two with different ids while it is being changed")
        for key_id, key in listed:
            if not 0 <= key_id <= 0xFF or len(key) != KEY_BYTES:
                raise NodeError(f"a key has {KEY_BYTES} bytes and an id from 0 to 255")
        return cls(by_id, listed[0][0])

    @classmethod
    def none(cls) -> GroupKeys:
        """For the `memory` transport, whose frames never leave the process."""
        return cls({}, 0)

    def __repr__(self) -> str:
        return f"GroupKeys(ids={sorted(self.by_id)}, current={self.current})"


def parse_keys(text: str) -> GroupKeys:
    """The keys of a key file's text: a line `<id> <64 hex digits>` per key, the one to be used first.

    Lines that begin with # are remarks. An error never shows the contents of the file.
    """
    keys = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            key_id, digits = words
            if len(digits) != 2 * KEY_BYTES:
                raise ValueError
            keys.append((int(key_id), bytes.fromhex(digits)))
        except ValueError:
            raise NodeError(f"line {number} is no key: an id and {2 * KEY_BYTES} hex digits") from None
    return GroupKeys.of(keys)
