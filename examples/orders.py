"""Send and receive with every acknowledgement confirmed. Needs a running server: `make run`."""

from __future__ import annotations

import asyncio
import os

import antiphon


async def main() -> None:
    """The example of the README."""
    async with antiphon.connect(os.environ.get("ANTIPHON_URL", "antiphon://127.0.0.1:7420")) as connection:
        async with connection.session() as session:
            producer = session.producer("queue:orders")
            receipt = await producer.send(
                {"order": 7, "item": "score"}, properties={"region": "EU"}, key="customer-7"
            )
            print("stored as", receipt.sequence, receipt.message_id)
            await producer.send_many(f"order {number}" for number in range(10_000))

        async with connection.session(ack="individual") as session:
            consumer = session.consumer("queue:orders")
            message = await consumer.receive(timeout=1.0)
            assert message is not None
            print(message.body, message.properties, message.delivery_count)
            await message.ack()  # confirmed: it will never come again
            for message in await consumer.receive_many(1000, timeout=1.0):
                await message.ack()


asyncio.run(main())
