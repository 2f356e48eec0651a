"""Who watches: each checker holds one promise of the design and says in words when it was broken.

Checkers only watch; what happens is the workload's business. They keep their memory through every
crash of every node, which is what makes them see more than a node can see of itself.
"""
