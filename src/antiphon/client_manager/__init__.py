"""The door: connections, sessions, and the way of a command into the order and back.

effects              what happens to a client manager, and what it asks for
settings             its limits and windows
connection           who speaks, what a peer may say when, and what is said to it
session              a client's ordered stream of commands, and its consumers
awaited              what is done once a channel has come far enough, as data
destination_service  names of destinations to ids
admission            is this a command that a client may have ordered?
envelopes            the commands of all sessions gathered, fairly, into envelopes
ordering             a command's way into its envelope, and its outcome's way back
repetition           what is said of a session when the channel may have heard it before
coordination         a transaction in several channels: prepared, decided, carried out
consumers            attached at the primary, fed, and attached again when the primary changes
manager              all of it as one machine
"""
