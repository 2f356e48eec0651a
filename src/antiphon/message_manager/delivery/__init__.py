"""The state that a primary has for one term: consumers, deliveries and clocks."""
