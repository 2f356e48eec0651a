"""What an application imports.

core        the client's half of one connection, without sockets or a clock:
            core_outbox (commands on their way), core_gathering (sends that travel together),
            core_consumer (what was delivered), core_session, core_events
aio         the asyncio face: `connect`, `Connection`
session, producer, consumer, admin, receipts    what it hands out

The core is the whole protocol. A face moves bytes, tells the time, and turns what the
core reports into futures.
"""
