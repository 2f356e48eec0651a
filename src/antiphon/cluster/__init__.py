"""What a cluster is made of: its nodes and channels, the file that lists them, and that all nodes have the
same one."""
