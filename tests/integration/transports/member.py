"""A member in a process of its own, for `test_processes`: `python -m tests.integration.transports.member`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from antiphon.transport.interface import ArrivedFrame, Peer, TransportSettings
from antiphon.transport.tcp import TcpTransport
from antiphon.transport.udp import UdpTransport
from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import CLUSTER, DEADLINE_SECONDS, KEYS, body

FRAMES_EACH = 40


async def member(told: dict[str, Any]) -> None:
    """One member: get acquainted, speak when told to, say when everything was heard, end with stdin."""
    peers = {int(node): Peer(*place) for node, place in told["peers"].items()}
    node = told["node"]
    settings = TransportSettings(
        node=node,
        cluster_id=CLUSTER,
        run_id=os.urandom(16),
        peers=peers,
        keys=KEYS,
        groups={lane: (told["groups"][lane][0], told["groups"][lane][1]) for lane in Lane},
        datagram_bytes=told["datagram_bytes"],
    )
    others = settings.others
    greeted: set[int] = set()
    heard: dict[int, set[bytes]] = {other: set() for other in others}
    news = asyncio.Event()

    def deliver(arrived: list[ArrivedFrame]) -> None:
        for one in arrived:
            if one.frame == b"hello":
                greeted.add(one.sender)
            else:
                heard[one.sender].add(hashlib.sha256(one.frame).digest())
        news.set()

    cls = TcpTransport if told["kind"] == "tcp" else UdpTransport
    transport = cls(settings, deliver, fault_file=Path(told["faults"]))
    await transport.start()
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    spoken = asyncio.create_task(stdin.readline())
    is_acquainted = False
    while not spoken.done():
        # Whoever has been restarted needs greeting again; so everybody greets until it is time to speak.
        for other in others:
            transport.send(other, [b"hello"])
        if greeted == set(others) and not is_acquainted:
            is_acquainted = True
            print(json.dumps({"acquainted": True}), flush=True)
        await asyncio.wait([spoken], timeout=0.02)
    frames = [body(node * 1_000 + number, 1 + (number * 7_919) % 100_000) for number in range(FRAMES_EACH)]
    wanted = {
        other: {
            hashlib.sha256(body(other * 1_000 + number, 1 + (number * 7_919) % 100_000)).digest()
            for number in range(FRAMES_EACH)
        }
        for other in others
    }
    for frame in frames:
        transport.multicast(Lane.DATA, [frame])
    while heard != wanted:
        news.clear()
        await news.wait()
    print(json.dumps({"heard": {other: len(found) for other, found in heard.items()}}), flush=True)
    await stdin.read()
    await transport.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(asyncio.wait_for(member(json.loads(sys.argv[1])), 2 * DEADLINE_SECONDS))
