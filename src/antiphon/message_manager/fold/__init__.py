"""The effect of each command on the state of a channel: a module of handlers for each family."""
