"""Key file: the group key of a cluster on disk, readable by its owner only.

# the first key is used, each is accepted
1 5f0c…(64 hex digits)
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from antiphon.errors import NodeError
from antiphon.transport.keys import KEY_BYTES, GroupKeys, parse_keys

_BYTES_MAX = 4096


def read_key_file(path: Path) -> GroupKeys:
    """The keys in the file; `NodeError` unless the file is ours, readable by us alone, and valid."""
    try:
        with path.open("rb") as file:
            # Of the open file: between a look at the path and the reading the file could be replaced.
            status = os.fstat(file.fileno())
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise NodeError(f"the key file {path} cannot be read: {error.strerror}") from None
    if status.st_uid not in (os.geteuid(), 0):
        raise NodeError(f"the key file {path} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise NodeError(f"the key file {path} can be read by others; chmod 600 it, and consider a new key")
    if len(text) > _BYTES_MAX:
        raise NodeError(f"the key file {path} is longer than two keys can be")
    try:
        return parse_keys(text.decode("ascii"))
    except UnicodeDecodeError:
        raise NodeError(f"the key file {path} is no text") from None
    except NodeError as error:
        raise NodeError(f"the key file {path}: {error.text}") from None


def generate_key_file(path: Path, key_id: int = 1) -> GroupKeys:
    """Write a new random key; an existing file is never overwritten."""
    key = secrets.token_bytes(KEY_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise NodeError(f"the key file {path} cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"# the first key is used, each is accepted\n{key_id} {key.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
    return GroupKeys.of([(key_id, key)])
