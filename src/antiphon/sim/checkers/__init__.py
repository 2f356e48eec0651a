"""Checkers: each watches one promise of the design and says in words when it was broken.

Checkers change nothing, and keep their memory through every crash of every node; so they see more than a
node.
"""
