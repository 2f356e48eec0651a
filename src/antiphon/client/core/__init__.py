"""The client's half of the protocol, pure: bytes and time come in, frames and events go out.

client              one client on one connection after the other: requests, sessions, heartbeats
session             one session: its channels, its consumers, its acknowledgements
outbox              the commands of a session to one channel, from the application to their outcome
publication         messages that leave as one command
consumer            what was delivered to a consumer, and how far the application came with it
consumer_requests   what the core asks about a consumer by itself
transaction         what a transaction has in each channel
requests, events, outcomes, receipts, route, pace    what these have in common
"""
