"""What an application imports.

core          the client's half of one connection, without sockets or a clock; its parts are
              core_events, core_session, core_outbox (commands on their way), core_gathering
              (messages that travel together), core_consumer (what was delivered) and
              core_transaction (what is to be committed)

aio           the asyncio face: `connect`, `Connection`
session, producer, consumer, staging, admin, receipts    what it hands out
link          the core on a real socket
scope         what a session shares with its producers and consumers
transactions, transacting     commit and rollback, and the way of what is sent in between
publications, sending, subscribing, browsing, outcomes, block, once, servers, durations
              their single tasks

The core is the whole protocol. A face moves bytes, tells the time, and turns what the core
reports into futures.
"""
