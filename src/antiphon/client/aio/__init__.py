"""The asyncio face: it moves bytes, tells the time, and turns what the core reports into futures.

connection, session, producer, consumer, staging, ranges, admin    what an application uses
link        the core on a real socket
scope       what a session shares with its producers and consumers
sending     from a `send` or a `send_many` to receipts; resending: the same once more
transactions, transacting    commit and rollback, and the way of what is sent in between
lots        messages that the loop lends to a thread
holds, block    what is said of holds; what all classes share
"""
