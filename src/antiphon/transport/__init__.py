"""Transport: frames of the bus between the nodes of a cluster.

    memory    objects through a queue, within one process
    udp       IP multicast for what concerns all, unicast for the rest; what is lost is asked for again
    tcp       the same over streams, where there is no multicast

A frame is what the bus's codec writes, up to a few MiB. It arrives whole or not at all, perhaps late,
perhaps after others that were sent later; the roles of the bus expect no more. An embedded message
system has no transport: its roles share one node.

The machines are pure and take their time and chance as parameters. Sockets, files and the clock are
touched in `udp`, `tcp`, `memory`, `sockets`, `key_file` and `fault_file` only.
"""
