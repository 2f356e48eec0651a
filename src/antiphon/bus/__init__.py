"""The bus: a reliable, atomic, totally ordered multicast for one channel, as pure machines."""
