"""The message manager: where the messages of a channel live, and how they leave it again."""
