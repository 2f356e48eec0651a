"""A group of nodes at the level of the bus: the real roles, a small application on top, faults all around.

station.py       the machines of one node, without clients; tally.py: the application on top of them
carrier.py       whatever is said passes through the codec and by the checkers
runner.py        lets one node live, die, sleep and live again, with a clock of its own
payloads.py      the payloads of a journal, whose losses the checkers see
atlas.py         what the group can spare; losses.py destroys no more than that
faults.py        what goes wrong, and when
profile.py       how much of it, drawn from the seed; named profiles lay stress on one thing
"""
