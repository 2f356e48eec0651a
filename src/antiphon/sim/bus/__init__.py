"""A group of nodes at the level of the bus: the real roles, a small application on top, and faults.

station.py       the machines of one node, without clients; tally.py: the application on top of them
carrier.py       every message passes through the codec and by the checkers
runner.py        the lives of one node, with a clock of its own
payloads.py      the payloads of a journal, whose losses the checkers see
atlas.py         the disks that the group can spare; losses.py destroys no more than that
faults.py        the acts of faults
profile.py       how many, drawn from the seed; named profiles stress one thing
"""
