"""The two tiers of a cluster: client managers without a disk, message managers and witnesses with one.

runner.py        lets one node live, die, sleep and live again, and carries what it says to the others
faults.py        what goes wrong, and when
profile.py       how much of it, drawn from the seed; named profiles lay stress on one thing
"""
