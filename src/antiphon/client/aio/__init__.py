"""The asyncio face: moves bytes, tells the time, and turns the core's events into futures.

connection, session, producer, consumer, staging, ranges, admin    the application's classes
    link        the core on a real socket
    scope       the state that a session shares with its producers and consumers
    sending     from a `send` or a `send_many` to receipts; resending: the same once more
transactions, transacting    commit and rollback, and the way of a transaction's messages
    lots        messages that the loop lends to a thread
holds, block    the commands of holds; helpers of all classes
"""
