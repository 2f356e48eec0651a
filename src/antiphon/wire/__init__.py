"""Bytes to frames and commands, and back: the one codec all speakers share.

primitives  reading and writing numbers, texts and byte strings within bounds
layout      a dataclass whose annotations are its wire format
commands    what is ordered by the bus: headers, payloads, outcomes
frames      what a client and its client manager say to each other
buffer      whole frames out of a stream that arrives in pieces

Everything here is pure, and everything read here is untrusted: bytes that are
no frame raise `ProtocolError`, in time and memory linear in their number.
"""
