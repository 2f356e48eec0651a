"""The simulator: the machines of a node run here with clock, network and disk made up from one seed.

runs.py          one seed of one workload, from the first event to the verdict
world.py         virtual time, one source of chance per part, the order of everything
trace.py         the events of a run, in lines for people and in a digest for machines
disk.py          the twin of runtime/disk.py: a disk that forgets what was not synced
storage.py       the twin of runtime/storage.py: a keeper whose syncs and files take virtual time
network.py       the twin of runtime/network.py: connections that cut bytes anywhere
runner.py        the twin of runtime/node_runner.py: the lives of the nodes of a cluster; an embedded node
                 is a cluster of one
habits.py        the settings of those nodes
faults.py        the table of faults: a name, how often, and the act
observing.py     the checkers' view of a message manager
image.py         the records on a disk, read independently of the node
links.py         the network between nodes: loss, duplicates, delays, partitions
bus/             the bus alone: its nodes, their disks, their faults
cluster/         the faults of a cluster, and how many
clients/         clients that publish and consume: of the client library, and rude ones that speak frames
workloads/       the nodes, clients, faults and final checks of each kind of run
checkers/        one promise of the design per object
"""
