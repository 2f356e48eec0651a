"""Destinations: queues, and topics with their subscriptions."""
