"""The two tiers of a cluster, client managers and message managers, while things go wrong around them.

faults.py        what goes wrong, and when
profile.py       how much of it, drawn from the seed; named profiles lay stress on one thing
"""
