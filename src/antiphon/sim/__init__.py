"""The simulator: the machines of a node run here with clock, network and disk made up from one seed.

runs.py          one seed of one workload, from the first event to the verdict
world.py         virtual time, one source of chance per part, the order of everything
trace.py         what happened, in lines for people and in a digest for machines
disk.py          the twin of runtime/disk.py: a disk that forgets what was not synced
storage.py       the twin of runtime/storage.py: a keeper whose syncs and files take virtual time
network.py       the twin of runtime/network.py: connections that cut bytes anywhere
runner.py        the twin of runtime/node_runner.py: drives the nodes of a cluster, life after life; an
                 embedded node is a cluster of one
habits.py        how those nodes are set up
faults.py        what goes wrong in a run: a name, how often, and the act
observing.py     what the checkers see of a message manager
image.py         what the records on a disk say, read independently of the node
links.py         the network between nodes: loss, duplicates, delays, partitions
bus/             the bus alone: its nodes, their disks, what goes wrong around them
cluster/         what goes wrong around the nodes of a cluster, and how much of it
clients/         clients that publish and consume: of the client library, and rude ones that speak frames
workloads/       who acts: which nodes and clients there are, what goes wrong, what must hold in the end
checkers/        who watches: one promise of the design per object
"""
