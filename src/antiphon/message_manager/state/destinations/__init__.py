"""What messages are sent to: queues, and topics with their subscriptions."""
