"""The workloads: the clients of a run, and what goes wrong around them."""
