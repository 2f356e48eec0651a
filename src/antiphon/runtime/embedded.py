"""The embedded message system: every role in one process, one data directory, one client port."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from antiphon import clock
from antiphon.errors import AntiphonError, NodeError
from antiphon.event_log import EventLogSettings
from antiphon.events import DISK_NOTE, NODE_FAILED
from antiphon.journal.format import Settings as JournalSettings
from antiphon.names import PLAIN, SECURE
from antiphon.node import EMBEDDED_ROLE
from antiphon.runtime.cluster_data import ports_to_choose_from
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.event_file import EventFile, EventFileSettings
from antiphon.runtime.loops import loop_factory, stop_signal
from antiphon.runtime.network import ClientPort
from antiphon.runtime.node_runner import NodeRunner
from antiphon.runtime.storage import ChannelStorage
from antiphon.startup import Identity, StartedNode, StartSettings, start
from antiphon.tls import ServerFiles, TlsContext

log = logging.getLogger("antiphon")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSettings:
    data: Path
    port: int
    host: str = "127.0.0.1"
    accept_possible_loss: bool = False
    tls: ServerFiles | None = None
    """Clients connect with TLS, with these certificates."""
    journal: JournalSettings = field(default_factory=JournalSettings)
    start: StartSettings = field(
        default_factory=lambda: StartSettings(events=EventLogSettings(is_published=True))
    )
    events: EventFileSettings = field(default_factory=EventFileSettings)


def run_embedded(settings: EmbeddedSettings, announce: Callable[[dict[str, Any]], None]) -> int:
    """Run until a signal says stop; returns the exit code. `announce` gets the ready line as an object."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve_embedded(settings, announce))


async def serve_embedded(settings: EmbeddedSettings, announce: Callable[[dict[str, Any]], None]) -> int:
    # Before the disk is touched: files that cannot be used are the operator's business.
    tls = settings.tls.context() if settings.tls is not None else None
    disk = FileDisk(settings.data, accept_possible_loss=settings.accept_possible_loss)
    try:
        identity = Identity(
            disk_id=secrets.token_bytes(16),
            run_id=secrets.token_bytes(16),
            start_s=int(time.time()),
        )
        started = start(disk, settings.journal, identity, settings.start)
        for note in disk.notes:
            started.node.say(DISK_NOTE(note=note))
        events = EventFile(settings.data, settings.events)
        try:
            return await _serve(settings, disk, started, tls, announce, events)
        finally:
            events.close()
    finally:
        disk.close()


async def _serve(
    settings: EmbeddedSettings,
    disk: FileDisk,
    started: StartedNode,
    tls: TlsContext | None,
    announce: Callable[[dict[str, Any]], None],
    events: EventFile,
) -> int:
    runner = NodeRunner(started.node, events.record)
    runner.own_loop()
    port = ClientPort(runner.take, note=runner.note)
    channel = started.channel
    keeper = started.make_keeper(clock.now_ns())
    storage = ChannelStorage(disk, keeper, tell=partial(runner.tell, channel), fail=runner.fail)
    stop = stop_signal()
    try:
        runner.begin({channel: storage}, port)
        await runner.serving
        await _listen(port, settings.host, settings.port, tls)
        announce(_ready(settings, started, port))
        await asyncio.wait((stop, runner.failed), return_when=asyncio.FIRST_COMPLETED)
        if runner.failed.done():
            runner.failed.result()
        runner.leave()
        await port.stop()
    except BaseException as error:
        runner.end()
        storage.abandon()
        if isinstance(error, Exception):
            failed = NODE_FAILED(problem=str(error))
            events.append(started.node.last_words(time.time_ns() // 1_000_000, failed))
        if isinstance(error, AntiphonError) or not isinstance(error, Exception):
            raise
        # A bug: the node ends rather than go on with a state that it does not understand.
        log.critical("the node stops: %s", error, exc_info=error)
        return 1
    runner.end()
    storage.close()
    return 0


async def _listen(port: ClientPort, host: str, number: int, tls: TlsContext | None) -> None:
    """Listen on this port, or if it is 0 on a free one, drawn like those of a cluster."""
    if number:
        await port.start(host, number, tls)
        return
    ports = ports_to_choose_from()
    for candidate in random.SystemRandom().sample(ports, len(ports)):
        try:
            await port.start(host, candidate, tls)
            return
        except NodeError as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE):
                raise
    raise NodeError(f"no port between {ports[0]} and {ports[-1]} is free")


def _ready(settings: EmbeddedSettings, started: StartedNode, port: ClientPort) -> dict[str, Any]:
    host, number = port.addresses[0]
    listen = f"{host}:{number}"
    scheme = PLAIN if settings.tls is None else SECURE
    return {
        "ready": True,
        "url": f"{scheme}://{listen}",
        "data": str(settings.data),
        "console": None,
        "metrics": [],
        "nodes": [
            {
                "name": started.node.name,
                "role": EMBEDDED_ROLE,
                "channel": started.channel,
                "rank": 1,
                "pid": os.getpid(),
                "listen": {scheme: listen},
            }
        ],
    }
