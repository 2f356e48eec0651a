"""The real clock, chance, network and disk: no other folder touches them."""
