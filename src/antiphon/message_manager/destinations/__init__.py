"""What messages are sent to: queues now, topics beside them when they come."""
