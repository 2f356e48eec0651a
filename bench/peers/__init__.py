"""`make bench ARGS=--peers`: the same work on Antiphon and on other brokers, three replicas each.

A module for each peer has its servers and its client; `load.py` has the work, `report.py` runs all and
prints the table.
"""
