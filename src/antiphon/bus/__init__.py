"""The bus: one order for everything that is sent on a channel, agreed before anybody relies on it.

In the order in which an envelope meets them:

    producer           gets the envelopes of a node into the order, once each
    data_server        keeps them durably and reports what it holds
    sequencer          leads or follows; candidacy: how it comes to lead; reign: what it does then;
                       laggards: whom it waits for
    commit_server      makes the order durable, for one epoch at a time
    member             hands committed envelopes to the message manager
    checkpoint_server  makes the state after an agreed number durable
    holder, joining    gives it to a node that needs it; takes it from one that has it
    presence           who is there, and how far
    replica            all of these on one node, and the queue between them
    recovery           what a crash left, turned into what they begin with

What they speak and keep: messages, effects (and events), codec, entries, records, log, ledger, prefix,
superblock, group. Handed in from outside: ports, chance.

Pure: no clock, no chance of its own, no files, no sockets. A machine is stepped with the time and with
what happened, and answers with what must be done.
"""
