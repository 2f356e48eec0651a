/* Commit and the change of sequencer: two members never see different entries at one number.
 *
 * What is modelled
 *     Three commit servers, epochs 1 .. EPOCHS with one sequencer each, numbers 1 .. SLOTS. A sequencer seals,
 *     adopts the best log of its seal replies, writes it again under its own epoch (EPOCH_START), and numbers new
 *     entries (COMMIT_SUBMIT). Whole logs travel; suffixes.pml is about what changes when only parts do.
 *     A message, once sent, lies there for ever: it may be taken late, twice or never. That is loss,
 *     duplication, reordering, partitions, and the death of a sequencer, which is one that no longer acts. Every
 *     epoch seals from the start: a SEAL that nobody has taken yet and one that is not yet sent look the same.
 *
 * What is left out
 *     Payloads and reports (reports.pml), configurations (configuration.pml), checkpoints, damaged disks, time.
 *
 * The property
 *     Agreement: once a number is committed, in whatever epoch, it is never committed with another entry.
 *     An entry counts as committed as soon as COMMIT_QUANTITY acknowledgements of one epoch cover it, whether or not
 *     its sequencer lives to see them: a sequencer that sees them late has learned nothing else.
 *
 * Flags: mistakes that must be found
 *     NO_FENCE          a commit server takes the word of an epoch lower than the one it promised
 *     SEAL_ONE          one seal reply is enough, so a seal need not meet a commit
 *     ACK_BEFORE_SYNC   an acknowledged entry was not yet on disk, and one crash loses it
 *     REUSE_EPOCH       a sequencer restarts, forgets what it numbered, and goes on in the same epoch
 *     ADOPT_LONGEST     a candidate adopts the longest log instead of the greatest (log_epoch, last); 3 epochs
 *     NO_RESUBMIT       adopted entries count as acknowledged wherever they already lie, unwritten; 4 epochs
 *
 * Bounds
 *     EPOCHS (2) and SLOTS (2). Fewer than three epochs give false comfort: two mistakes stay unseen.
 */

#ifndef EPOCHS
#define EPOCHS 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#define SERVERS 3
#define COMMIT_QUANTITY 2
#ifdef SEAL_ONE
#define SEAL_QUANTITY 1
#else
#define SEAL_QUANTITY 2
#endif
#define NOBODY SERVERS

/* A commit server: all of it durable. An entry is named after the epoch that numbered it; 0 is none. */
typedef CommitServer {
    byte promised;
    byte log_epoch;
    byte last;
    byte log[SLOTS + 1]
}
CommitServer server[SERVERS];

/* What a commit server answered to a SEAL, as it was then. */
typedef SealOk {
    bit sent;
    byte log_epoch;
    byte last;
    byte log[SLOTS + 1]
}

/* A sequencer, by its epoch. `adopted` is the length of the log that EPOCH_START carries. */
typedef Sequencer {
    bit started;
    byte adopted;
    byte last;
    byte log[SLOTS + 1];
    byte acknowledged[SERVERS];
    SealOk seal_ok[SERVERS]
}
Sequencer sequencer[EPOCHS + 1];

/* What the members know, or could: the entry first committed at a number. */
byte committed[SLOTS + 1];

#ifdef ACK_BEFORE_SYNC
bit crashed;
#endif
#ifdef REUSE_EPOCH
bit restarted;
#endif

/* Only of use within one step, so no part of the state. */
hidden byte k, i, count, best;

/* The acknowledgement COMMIT_ACKNOWLEDGE(e, upto) of server c, and what it commits. */
inline acknowledge(e, c, upto) {
    if
    :: upto > sequencer[e].acknowledged[c] -> sequencer[e].acknowledged[c] = upto
    :: else
    fi;
    for (k : 1 .. SLOTS) {
        count = 0;
        for (i : 0 .. SERVERS - 1) {
            if
            :: sequencer[e].acknowledged[i] >= k -> count++
            :: else
            fi
        }
        if
        :: count >= COMMIT_QUANTITY && k <= sequencer[e].last ->
            assert(committed[k] == 0 || committed[k] == sequencer[e].log[k]);
            committed[k] = sequencer[e].log[k]
        :: else
        fi
    }
}

/* SEAL(e) reaches server c: promise and answer are one durable step. */
#define CAN_SEAL(e, c) (e > server[c].promised)
inline seal(e, c) {
    server[c].promised = e;
    if
    :: !sequencer[e].started ->     /* who has started hears no more answers */
        sequencer[e].seal_ok[c].sent = 1;
        sequencer[e].seal_ok[c].log_epoch = server[c].log_epoch;
        sequencer[e].seal_ok[c].last = server[c].last;
        for (k : 1 .. SLOTS) { sequencer[e].seal_ok[c].log[k] = server[c].log[k] }
    :: else
    fi
}

#ifdef ADOPT_LONGEST
#define IS_BETTER(a, b) (a.last > b.last)
#else
#define IS_BETTER(a, b) (a.log_epoch > b.log_epoch || (a.log_epoch == b.log_epoch && a.last > b.last))
#endif

/* The candidate of e has answers enough: it adopts the best log. The answers are then forgotten. */
#define OK(e) sequencer[e].seal_ok
#define CAN_START(e) (!sequencer[e].started && OK(e)[0].sent + OK(e)[1].sent + OK(e)[2].sent >= SEAL_QUANTITY)
inline start(e) {
    best = NOBODY;
    for (i : 0 .. SERVERS - 1) {
        if
        :: OK(e)[i].sent && best == NOBODY -> best = i
        :: OK(e)[i].sent && best != NOBODY && IS_BETTER(OK(e)[i], OK(e)[best]) -> best = i
        :: else
        fi
    }
    sequencer[e].started = 1;
    sequencer[e].adopted = OK(e)[best].last;
    sequencer[e].last = OK(e)[best].last;
    for (k : 1 .. SLOTS) { sequencer[e].log[k] = OK(e)[best].log[k] }
    for (i : 0 .. SERVERS - 1) {
        OK(e)[i].sent = 0;
        OK(e)[i].log_epoch = 0;
        OK(e)[i].last = 0;
        for (k : 1 .. SLOTS) { OK(e)[i].log[k] = 0 }
    }
}

/* EPOCH_START(e) reaches server c: the adopted log replaces its own, under e, and is acknowledged. */
#ifdef NO_FENCE
#define CAN_INSTALL(e, c) (sequencer[e].started && server[c].log_epoch != e)
#else
#define CAN_INSTALL(e, c) (sequencer[e].started && server[c].log_epoch < e && e >= server[c].promised)
#endif
inline install(e, c) {
    if
    :: e > server[c].promised -> server[c].promised = e
    :: else
    fi;
    server[c].log_epoch = e;
    server[c].last = sequencer[e].adopted;
    for (k : 1 .. SLOTS) {
        if
        :: k <= sequencer[e].adopted -> server[c].log[k] = sequencer[e].log[k]
        :: else -> server[c].log[k] = 0
        fi
    }
    acknowledge(e, c, server[c].last)
}

/* The sequencer of e numbers one more entry. */
#define CAN_ASSIGN(e) (sequencer[e].started && sequencer[e].last < SLOTS)
inline assign(e, entry) {
    sequencer[e].last++;
    sequencer[e].log[sequencer[e].last] = entry
}

/* COMMIT_SUBMIT(e) reaches server c: it appends the next entry, only to a log of e, and acknowledges. */
#define FITS(e, c) (sequencer[e].started && server[c].log_epoch == e && server[c].last < sequencer[e].last)
#ifdef NO_FENCE
#define CAN_APPEND(e, c) (FITS(e, c))
#else
#define CAN_APPEND(e, c) (FITS(e, c) && server[c].promised == e)
#endif
inline append(e, c) {
    server[c].last++;
    server[c].log[server[c].last] = sequencer[e].log[server[c].last];
    acknowledge(e, c, server[c].last)
}

/* The mistake NO_RESUBMIT: what c holds already, byte for byte, is counted without being written under e. */
#define CAN_COUNT_OLD(e, c) (sequencer[e].started && server[c].promised == e && server[c].log_epoch < e \
                             && sequencer[e].acknowledged[c] < sequencer[e].adopted \
                             && server[c].log[sequencer[e].acknowledged[c] + 1] \
                                == sequencer[e].log[sequencer[e].acknowledged[c] + 1])

/* One thing that may happen. A d_step may not end with a loop, hence the last word. */
#define STEP(guard, action) :: d_step { guard -> action; skip }

#define OF_EPOCH(e) \
    STEP(CAN_START(e), start(e)) \
    STEP(CAN_ASSIGN(e), assign(e, e)) \
    OF_EPOCH_AND_SERVER(e, 0) \
    OF_EPOCH_AND_SERVER(e, 1) \
    OF_EPOCH_AND_SERVER(e, 2)

#define OF_EPOCH_AND_SERVER(e, c) \
    STEP(CAN_SEAL(e, c), seal(e, c)) \
    STEP(CAN_INSTALL(e, c), install(e, c)) \
    STEP(CAN_APPEND(e, c), append(e, c))

active proctype world() {
end:
    do
    OF_EPOCH(1)
#if EPOCHS >= 2
    OF_EPOCH(2)
#endif
#if EPOCHS >= 3
    OF_EPOCH(3)
#endif
#if EPOCHS >= 4
    OF_EPOCH(4)
#endif

#ifdef NO_RESUBMIT
#define COUNT_OLD(e, c) STEP(CAN_COUNT_OLD(e, c), acknowledge(e, c, sequencer[e].acknowledged[c] + 1))
#define COUNT_OLD_OF(e) COUNT_OLD(e, 0) COUNT_OLD(e, 1) COUNT_OLD(e, 2)
    COUNT_OLD_OF(1)
#if EPOCHS >= 2
    COUNT_OLD_OF(2)
#endif
#if EPOCHS >= 3
    COUNT_OLD_OF(3)
#endif
#if EPOCHS >= 4
    COUNT_OLD_OF(4)
#endif
#endif

#ifdef ACK_BEFORE_SYNC
#define LOSE_LAST(c) :: d_step { !crashed && server[c].last > 0 -> \
        server[c].log[server[c].last] = 0; server[c].last--; crashed = 1 }
    LOSE_LAST(0)
    LOSE_LAST(1)
    LOSE_LAST(2)
#endif

#ifdef REUSE_EPOCH
    :: d_step { !restarted && sequencer[1].last > sequencer[1].adopted ->
        for (k : sequencer[1].adopted + 1 .. SLOTS) { sequencer[1].log[k] = 0 }
        sequencer[1].last = sequencer[1].adopted; restarted = 1 }
    STEP(restarted && CAN_ASSIGN(1), assign(1, EPOCHS + 1))
#endif
    od
}
