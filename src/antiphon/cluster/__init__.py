"""A cluster: its nodes and channels, the file that lists them, and the agreement of all nodes on one file."""
