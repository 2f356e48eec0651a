"""The state of a channel: captured in checkpoints, restored from them, equal on all replicas."""
