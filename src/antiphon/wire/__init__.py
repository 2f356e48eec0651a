"""Bytes to frames and commands, and back.

primitives  reading and writing numbers, texts and byte strings within bounds
layout      a dataclass whose annotations are its wire format
commands    the commands that the bus orders: headers, payloads, outcomes
frames      the frames between a client and its client manager
buffer      whole frames out of a stream that arrives in pieces

Everything here is pure, and everything read here is untrusted: other bytes raise `ProtocolError`, in time and
memory linear in their number.
"""
