"""Transport: frames of the bus between the nodes of a cluster.

    memory    objects through a queue, within one process
    udp       IP multicast for the lanes, unicast for the rest; lost datagrams are asked for again
    tcp       the same over streams, where there is no multicast

A frame is a message of the bus, encoded, up to a few MiB. A frame arrives whole or not at all, perhaps late,
perhaps after later frames; the roles of the bus expect no more. An embedded system has no transport: its
roles share one node.

The machines are pure and take the time and random numbers as parameters. Only `udp`, `tcp`, `memory`,
`driver`, `sockets` and `key_file` touch sockets, files and the clock.
"""
