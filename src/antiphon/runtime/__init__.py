"""The real hall: the only folder that touches clock, chance, network and disk."""
