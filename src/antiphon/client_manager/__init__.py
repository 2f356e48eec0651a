"""The client manager: connections, sessions, and the way of a command into the order and back.

effects              the events and effects of a client manager
settings             its limits and windows
connection           one peer: its requests, its sessions, the frames to it
session              a client's ordered stream of commands, and its consumers
awaited              acts that wait until a channel has come far enough, as data
destination_service  names of destinations to ids
admission            is this a command that a client may have ordered?
envelopes            the commands of all sessions gathered, fairly, into envelopes
ordering             a command's way into its envelope, and its outcome's way back
repetition           commands of an envelope that is ordered once more
coordination         a transaction in several channels: prepared, decided, carried out
consumers            attached at the primary, fed, and attached again when the primary changes
manager              all of it as one machine
"""
