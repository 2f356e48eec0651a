"""The invented hall: the machines of a node run here with clock, network and disk made up from one seed.

world.py         virtual time, one source of chance per part, the order of everything
trace.py         what happened, in lines for people and in a digest for machines
disk.py          the twin of runtime/disk.py: a disk that forgets what was not synced
network.py       the twin of runtime/network.py: connections that cut bytes anywhere
node_runner.py   the twin of runtime/node_runner.py: drives one node, life after life
workloads/       who acts: clients that publish and consume, and what goes wrong around them
checkers/        who watches: one promise of the design per object
"""
