/* Commit and the change of sequencer when only parts of logs travel: what may be kept, and from whom.
 *
 * What is modelled
 *     As in sequencer_change.pml, three commit servers, epochs 1 .. EPOCHS, numbers 1 .. SLOTS, and messages that are
 *     taken late, twice or never. New here:
 *     - Each commit server knows how far its log is committed (committed_upto). It hears so from HEARTBEAT and forgets
 *       it in a crash.
 *     - The sequencer of an epoch is one of the commit servers. Its own is among those that answer its SEAL.
 *     - SEAL_OK carries positions only: log_epoch, last, committed_upto. The candidate keeps its own log up to the
 *       committed_upto it had when it claimed the epoch, and fetches the rest from the server with the best log, which
 *       hands it out only while its promise is that epoch.
 *     - EPOCH_START carries a suffix: from_seq and what follows. A server keeps its own log below from_seq, so it takes
 *       the message only if all that is committed; otherwise it answers START_NEED and gets a longer one. Whatever
 *       from_seq a server once asked for may arrive at any later time, so here every from_seq may, from 1 on.
 *
 * What is left out
 *     The base of a log and checkpoints, payloads, configurations, damaged disks, time.
 *
 * The properties
 *     Agreement: once a number is committed it is never committed with another entry.
 *     Truth: what a commit server holds at or below its committed_upto is what was committed. It hands these entries
 *     to members that ask for them.
 *     Reach: the best log of a seal reaches as far as anything that a reply says is committed.
 *
 * Flags: mistakes that must be found
 *     RAISE_FROM_ANY_EPOCH   rule R7 dropped: committed_upto is raised by the word of an epoch other than log_epoch
 *     KEEP_OWN_ENTRIES       rule R8 dropped: a candidate keeps its own entries as far as any reply says committed
 *     NO_START_NEED          a server takes every EPOCH_START, and keeps what it holds below from_seq, committed or not
 *
 * Bounds
 *     EPOCHS (3), SLOTS (1) and CRASHES (1). Two epochs hide KEEP_OWN_ENTRIES.
 */

#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#define SERVERS 3
#define COMMIT_QUANTITY 2
#define SEAL_QUANTITY 2
#define NOBODY SERVERS

/* A commit server. All but committed_upto is durable. An entry is named after the epoch that numbered it; 0 is none. */
typedef CommitServer {
    byte promised;
    byte log_epoch;
    byte last;
    byte committed_upto;
    byte log[SLOTS + 1]
}
CommitServer server[SERVERS];

/* Positions, and no entries. */
typedef SealOk {
    bit sent;
    byte log_epoch;
    byte last;
    byte committed_upto
}

/* A sequencer, by its epoch: IDLE, then SEALING, then LEADING or LOST. `adopted` is where the adopted log ends. */
#define IDLE 0
#define SEALING 1
#define LEADING 2
#define LOST 3
typedef Sequencer {
    byte state;
    byte node;
    byte own_committed_upto;    /* when it claimed the epoch; of use while SEALING */
    byte adopted;
    byte last;
    byte committed_upto;
    byte log[SLOTS + 1];
    byte acknowledged[SERVERS];
    SealOk seal_ok[SERVERS]
}
Sequencer sequencer[EPOCHS + 1];

/* The entry first committed at a number. */
byte committed[SLOTS + 1];
byte crashes;

/* Only of use within one step, so no part of the state. */
hidden byte k, i, count, best, low, keep;

/* COMMIT_ACKNOWLEDGE(e, last) of server c, and what it commits. */
inline acknowledge(e, c) {
    sequencer[e].acknowledged[c] = server[c].last;
    for (k : 1 .. SLOTS) {
        count = 0;
        for (i : 0 .. SERVERS - 1) {
            if
            :: sequencer[e].acknowledged[i] >= k -> count++
            :: else
            fi
        }
        if
        :: count >= COMMIT_QUANTITY ->
            assert(committed[k] == 0 || committed[k] == sequencer[e].log[k]);
            committed[k] = sequencer[e].log[k];
            if
            :: k > sequencer[e].committed_upto -> sequencer[e].committed_upto = k
            :: else
            fi
        :: else
        fi
    }
}

/* Node c claims epoch e. Its committed_upto of this moment goes into the SEAL. Servers differ by their names only, so
 * the first epoch may as well be that of server 0, and the second one's of server 0 or 1. */
#define CAN_CLAIM(e, c) (c < e && sequencer[e].state == IDLE && server[c].promised < e)
inline claim(e, c) {
    sequencer[e].state = SEALING;
    sequencer[e].node = c;
    sequencer[e].own_committed_upto = server[c].committed_upto
}

/* SEAL(e) reaches server c: promise and answer are one durable step. */
#define CAN_SEAL(e, c) (sequencer[e].state != IDLE && e > server[c].promised)
inline seal(e, c) {
    server[c].promised = e;
    if
    :: sequencer[e].state == SEALING ->
        sequencer[e].seal_ok[c].sent = 1;
        sequencer[e].seal_ok[c].log_epoch = server[c].log_epoch;
        sequencer[e].seal_ok[c].last = server[c].last;
        sequencer[e].seal_ok[c].committed_upto = server[c].committed_upto
    :: else
    fi
}

#define OK(e) sequencer[e].seal_ok
#define HAS_SEALED(e) (sequencer[e].state == SEALING && OK(e)[sequencer[e].node].sent \
                       && OK(e)[0].sent + OK(e)[1].sent + OK(e)[2].sent >= SEAL_QUANTITY)

/* The best of the replies: the greatest (log_epoch, last). `low` is what they know to be committed. */
inline choose(e) {
    best = NOBODY;
    low = 0;
    for (i : 0 .. SERVERS - 1) {
        if
        :: !OK(e)[i].sent
        :: OK(e)[i].sent ->
            if
            :: best == NOBODY -> best = i
            :: best != NOBODY && (OK(e)[i].log_epoch > OK(e)[best].log_epoch
                || (OK(e)[i].log_epoch == OK(e)[best].log_epoch && OK(e)[i].last > OK(e)[best].last)) -> best = i
            :: else
            fi;
            if
            :: OK(e)[i].committed_upto > low -> low = OK(e)[i].committed_upto
            :: else
            fi
        fi
    }
    assert(OK(e)[best].last >= low)
}

/* The candidate of e adopts: its own log as far as it may, the rest fetched from the best. If the best has meanwhile
 * promised another epoch it hands out nothing, and the candidate has lost. */
inline start(e) {
    choose(e);
    if
    :: server[best].promised != e -> sequencer[e].state = LOST
    :: else ->
        sequencer[e].state = LEADING;
#ifdef KEEP_OWN_ENTRIES
        keep = (low < server[sequencer[e].node].last -> low : server[sequencer[e].node].last);
#else
        keep = sequencer[e].own_committed_upto;
#endif
        for (k : 1 .. SLOTS) {
            if
            :: k <= keep -> sequencer[e].log[k] = server[sequencer[e].node].log[k]
            :: k > keep && k <= OK(e)[best].last -> sequencer[e].log[k] = server[best].log[k]
            :: else
            fi
        }
        sequencer[e].adopted = OK(e)[best].last;
        sequencer[e].last = OK(e)[best].last;
        sequencer[e].committed_upto = low
    fi;
    /* Either way the replies have done their work. */
    sequencer[e].own_committed_upto = 0;
    for (i : 0 .. SERVERS - 1) {
        OK(e)[i].sent = 0;
        OK(e)[i].log_epoch = 0;
        OK(e)[i].last = 0;
        OK(e)[i].committed_upto = 0
    }
}

/* EPOCH_START(e, from_seq, entries) reaches server c. */
#define FITS(e, c) (sequencer[e].state == LEADING && server[c].log_epoch < e && e >= server[c].promised)
#ifdef NO_START_NEED
#define CAN_INSTALL(e, c, from_seq) (FITS(e, c) && from_seq <= server[c].last + 1 \
                                     && from_seq <= sequencer[e].adopted + 1)
#else
#define CAN_INSTALL(e, c, from_seq) (FITS(e, c) && from_seq <= server[c].committed_upto + 1)
#endif
inline install(e, c, from_seq) {
    server[c].promised = e;
    server[c].log_epoch = e;
    server[c].last = sequencer[e].adopted;
    for (k : 1 .. SLOTS) {
        if
        :: k < from_seq     /* kept */
        :: k >= from_seq && k <= sequencer[e].adopted -> server[c].log[k] = sequencer[e].log[k]
        :: k >= from_seq && k > sequencer[e].adopted -> server[c].log[k] = 0
        fi;
        assert(k > server[c].committed_upto || server[c].log[k] == committed[k])
    }
    acknowledge(e, c)
}

/* The sequencer of e numbers one more entry. */
#define CAN_ASSIGN(e) (sequencer[e].state == LEADING && sequencer[e].last < SLOTS)
inline assign(e) {
    sequencer[e].last++;
    sequencer[e].log[sequencer[e].last] = e
}

/* COMMIT_SUBMIT(e) reaches server c: it appends the next entry, only to a log of e, and acknowledges. */
#define CAN_APPEND(e, c) (server[c].log_epoch == e && server[c].promised == e && server[c].last < sequencer[e].last)
inline append(e, c) {
    server[c].last++;
    server[c].log[server[c].last] = sequencer[e].log[server[c].last];
    acknowledge(e, c)
}

/* HEARTBEAT(e, committed_upto) reaches server c, perhaps an old one: committed_upto rises by one. What lies there may
 * from now on be handed to members. */
#define HAS_MORE(e, c) (server[c].committed_upto < sequencer[e].committed_upto \
                        && server[c].committed_upto < server[c].last)
#ifdef RAISE_FROM_ANY_EPOCH
#define CAN_RAISE(e, c) (HAS_MORE(e, c))
#else
#define CAN_RAISE(e, c) (HAS_MORE(e, c) && server[c].log_epoch == e)
#endif
inline raise(e, c) {
    server[c].committed_upto++;
    assert(committed[server[c].committed_upto] == server[c].log[server[c].committed_upto])
}

/* Server c crashes and comes back. What it leads it may lead no more; that is a sequencer which no longer acts. */
#define CAN_CRASH(c) (crashes < CRASHES && server[c].committed_upto > 0)
inline crash(c) {
    crashes++;
    server[c].committed_upto = 0
}

/* One thing that may happen. A d_step may not end with a loop, hence the last word. */
#define STEP(guard, action) :: d_step { guard -> action; skip }

#define OF_EPOCH(e) \
    STEP(HAS_SEALED(e), start(e)) \
    STEP(CAN_ASSIGN(e), assign(e)) \
    OF_EPOCH_AND_SERVER(e, 0) \
    OF_EPOCH_AND_SERVER(e, 1) \
    OF_EPOCH_AND_SERVER(e, 2)

#if SLOTS >= 2
#define INSTALL_FROM_HIGHER(e, c) STEP(CAN_INSTALL(e, c, 3), install(e, c, 3))
#else
#define INSTALL_FROM_HIGHER(e, c)
#endif

#define OF_EPOCH_AND_SERVER(e, c) \
    STEP(CAN_CLAIM(e, c), claim(e, c)) \
    STEP(CAN_SEAL(e, c), seal(e, c)) \
    STEP(CAN_INSTALL(e, c, 1), install(e, c, 1)) \
    STEP(CAN_INSTALL(e, c, 2), install(e, c, 2)) \
    INSTALL_FROM_HIGHER(e, c) \
    STEP(CAN_APPEND(e, c), append(e, c)) \
    STEP(CAN_RAISE(e, c), raise(e, c))

active proctype world() {
end:
    do
    OF_EPOCH(1)
    OF_EPOCH(2)
#if EPOCHS >= 3
    OF_EPOCH(3)
#endif
#if EPOCHS >= 4
    OF_EPOCH(4)
#endif
    STEP(CAN_CRASH(0), crash(0))
    STEP(CAN_CRASH(1), crash(1))
    STEP(CAN_CRASH(2), crash(2))
    od
}
