"""What only the primary has, for one term: consumers, what they are given, and its clocks."""
