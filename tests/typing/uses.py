"""Programs as users write them, read by mypy in `make check` and never run: what is allowed must type."""

from __future__ import annotations

import antiphon
from antiphon import blocking


async def send_everything(url: str) -> list[int]:
    counts: dict[str, int] = {"a": 1}
    names: list[str] = ["x", "y"]
    nested: dict[str, list[dict[str, float]]] = {"prices": [{"eur": 1.5}]}
    async with antiphon.connect(url) as connection, connection.session() as session:
        producer = await session.producer("queue:a")
        for body in (counts, names, nested):
            await producer.send(body, properties={"n": 1})
        await producer.send(bytearray(b"x"))
        await producer.send_many([counts])
        await producer.send_many([names, None])
        receipts = await producer.send_many([antiphon.Row(counts, {"region": "EU"}, key="k")])
        message = await session.consumer("queue:a").receive(timeout=1.0)
        if message is not None:
            received: bytes | str | dict[str, antiphon.Value] | list[antiphon.Value] | None = message.body
            print(received)
        return [receipt.sequence or 0 for receipt in receipts]


def send_without_await(url: str) -> None:
    counts: dict[str, int] = {"a": 1}
    with blocking.connect(url) as connection, connection.session() as session:
        producer = session.producer("queue:a")
        producer.send(counts)
        producer.send_many([antiphon.Row(counts), antiphon.Row(["x"])])
        for message in session.consumer("queue:a").receive_many(2, timeout=1.0):
            print(message.body)
