"""What each command of the log does to the state of a channel: a module of handlers for each family."""
