"""The client's half of the protocol, pure: bytes and time come in, frames and events go out.

    client              one client on one connection after the other: requests, sessions, heartbeats
    session             one session: its channels, its consumers, its acknowledgements
    outbox              the commands of a session to one channel, from the application to their outcome
    publication         messages that leave as one command
    consumer            the messages delivered to a consumer, and the application's progress with them
    consumer_requests   the core's own requests about a consumer
    transaction         the parts of a transaction, by channel
requests, events, outcomes, receipts, route, pace    common to these
"""
