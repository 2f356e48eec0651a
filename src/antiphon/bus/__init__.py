"""The bus: one order for everything that is sent on a channel, agreed before any node relies on it.

In the order in which an envelope meets them:

    producer           gets the envelopes of a node into the order, once each
    data_server        keeps them durably and reports them
    sequencer          leads or follows; candidacy: gets an epoch started; reign: numbers and commits;
                       marking: when a checkpoint is due
    commit_server      makes the order durable, for one epoch at a time
    member             hands committed envelopes to the message manager
    checkpoint_server  makes the state after an agreed number durable
    holder, joining    gives a checkpoint to another node; takes one from another node
    presence           the other nodes, and how far they are
    replica            all of these on one node, and the queue between them
    recovery           from the journal of a node to the beginning of its roles
    keeper             has the journal written as the roles ask, and says what is durable

Their messages and state: messages, effects (and events), codec, entries, records, log, ledger,
membership, group, schema. Interfaces: ports. Timers: repair, chance.

Pure: no clock, no random numbers, no files, no sockets. A machine is stepped with the time and events, and
returns effects.
"""
