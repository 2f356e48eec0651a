"""Connections: one for each process and each set of options, opened on first use.

Spark pickles readers and writers and sends them to workers, so none of them may hold a connection. Workers
live on from task to task, and with them the connections of this module. A forked worker inherits the
connections of its parent, and must not touch them: they are stored under the id of the process that made
them.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import antiphon.blocking
from antiphon.errors import InvalidOption
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges, RetryPolicy

if TYPE_CHECKING:
    from antiphon.blocking.face import Ranges

GREET_S: Final = 5.0

_guard = threading.Lock()
_opened: dict[tuple[int, ConnectionOptions], antiphon.blocking.Connection] = {}
_ranges: dict[tuple[int, ConnectionOptions], tuple[antiphon.blocking.Connection, Ranges]] = {}


def connection(options: ConnectionOptions) -> antiphon.blocking.Connection:
    """The connection of this process; a new one if there is none, or if it was given up."""
    with _guard:
        key = (os.getpid(), options)
        known = _opened.get(key)
        if known is not None and not known.closed:
            return known
        _opened[key] = opened = antiphon.blocking.connect(
            options.url, user=options.user, password=read_password(options), tls=options.tls
        )
        return opened


def greet(options: ConnectionOptions) -> None:
    """On a driver, before a job begins: reach the cluster, or fail soon because the address is wrong.

    A process that has reached the cluster before does not check: then the cluster is away only for a while.
    """
    with _guard:
        is_known = (os.getpid(), options) in _opened
    if not is_known:
        RetryPolicy(min(options.timeout_s, GREET_S), options.retry_s).ask(lambda: connection(options))


def patience(options: ConnectionOptions) -> RetryPolicy:
    """How long a query with these options waits for the cluster."""
    return RetryPolicy(options.timeout_s, options.retry_s)


def ranges(options: ConnectionOptions, *, waits_at_first: bool = True) -> PatientRanges:
    return PatientRanges(partial(_opened_ranges, options), patience(options), waits_at_first=waits_at_first)


def _opened_ranges(options: ConnectionOptions) -> Ranges:
    opened = connection(options)
    with _guard:
        key = (os.getpid(), options)
        known = _ranges.get(key)
        if known is None or known[0] is not opened or known[1].closed:
            _ranges[key] = known = (opened, opened.ranges())
        return known[1]


def read_password(options: ConnectionOptions) -> str | None:
    """The contents of the password file, without the end of its line."""
    if options.password_file is None:
        return None
    try:
        return Path(options.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidOption(f"passwordFile {options.password_file} cannot be read: {reason}") from None


def close_all() -> None:
    """Close the connections of this process, for tests and commands that end."""
    with _guard:
        own = [key for key in _opened if key[0] == os.getpid()]
        closing = [_opened.pop(key) for key in own]
        for key in own:
            _ranges.pop(key, None)
    for opened in closing:
        opened.close()
