"""The door: connections, sessions, and the way of a command into the order and back.

effects              what happens to a client manager, and what it asks for
settings             its limits and windows
connection           who speaks, what a peer may say when
session              a client's ordered stream of commands, and its consumers
destination_service  names of destinations to ids
envelopes            the commands of all sessions gathered, fairly, into envelopes
manager              all of it as one machine
"""
