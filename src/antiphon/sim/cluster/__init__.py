"""Faults of a cluster of client managers and message managers: `faults.py` has the acts, `profile.py` how
often."""
