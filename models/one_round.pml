/* One sync, one round: an envelope is numbered when it arrives; a replica writes envelope and entry together.
 *
 * What is modelled
 *     Three replicas, each a data server and a commit server; epochs 1 .. EPOCHS, the sequencer of epoch e on
 *     replica (e - 1) % 3; numbers 1 .. SLOTS; two envelopes. A sequencer seals, adopts the best log of its seal
 *     replies, writes that log again under its own epoch (EPOCH_START), and numbers envelopes as they arrive,
 *     durable or not. A replica writes the next entry and, if it lacks the envelope, the envelope too; one sync
 *     makes both durable. A crash before that sync keeps both, one or none of them.
 *     `covered`: through this number DATA_QUANTITY data servers, the sequencer's own among them, hold the data
 *     durably. Only a covered entry may be written without its envelope.
 *     A message may be taken late, twice or never, as in sequencer_change.pml; a sequencer that has died is one
 *     that no longer acts.
 *
 * What is left out
 *     Suffixes (suffixes.pml), lifetimes and reports (reports.pml), configurations (configuration.pml), lost
 *     disks, time. A replica writes its next entry when the one before is durable.
 *
 * The properties
 *     Agreement: once a number is committed, it is never committed with another envelope.
 *     Copies: a committed envelope is durable at DATA_QUANTITY replicas, the sequencer's own among them.
 *     Presence: a durable entry has its envelope beside it, durable, or is covered; what is covered is durable at
 *     DATA_QUANTITY replicas. So a candidate finds the data of the log that it adopts.
 *
 * Flags: mistakes that must be found
 *     ACK_WITHOUT_DATA        an entry above `covered` is written and acknowledged without its envelope
 *     RECOVER_WITHOUT_DATA    after a crash an entry is kept whose envelope did not come back
 *     COVERED_ACROSS_EPOCHS   a replica believes `covered` of an epoch that did not write its log
 *     COVERED_BEYOND_LOG      a seal reply tells a `covered` that runs ahead of its log
 *     COMMIT_WITHOUT_OWN      the sequencer's own copy is not waited for
 *     START_BEFORE_SYNC       EPOCH_START is written together with envelopes that are not durable yet: a crash
 *                             cuts the adopted log, which then counts as a log of the new epoch; 3 epochs
 *
 * Bounds
 *     EPOCHS (2), SLOTS (1), CRASHES (1).
 */

#ifndef EPOCHS
#define EPOCHS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#define REPLICAS 3
#define ENVELOPES 2
#define COMMIT_QUANTITY 2
#define SEAL_QUANTITY 2
#define DATA_QUANTITY 2
#define NOBODY REPLICAS

/* What a replica has written and not synced: nothing, its last entry, or that entry with its envelope. */
#define NOTHING 0
#define ENTRY 1
#define BOTH 2

/* All durable but what `unsynced` tells. `data` holds durable envelopes. */
typedef Replica {
    byte promised;
    byte log_epoch;
    byte last;
    byte covered;
    byte unsynced;
    byte log[SLOTS + 1];
    bit data[ENVELOPES + 1]
}
Replica replica[REPLICAS];

typedef SealOk {
    bit sent;
    byte log_epoch;
    byte last;
    byte covered;
    byte log[SLOTS + 1]
}

typedef Sequencer {
    bit started;
    byte adopted;
    byte last;
    byte covered;
    byte log[SLOTS + 1];
    byte acknowledged[REPLICAS];
    SealOk seal_ok[REPLICAS]
}
Sequencer sequencer[EPOCHS + 1];

/* The envelope first committed at a number. */
byte committed[SLOTS + 1];
byte crashes;

/* Only of use within one step, so no part of the state. */
hidden byte k, i, j, e_, count, best, next;

#define HOME(e) ((e - 1) % REPLICAS)
#define COPIES(m) (replica[0].data[m] + replica[1].data[m] + replica[2].data[m])

/* What acknowledgements and durable copies commit by now, in whatever epoch. */
inline commit() {
    for (e_ : 1 .. EPOCHS) {
        for (k : 1 .. SLOTS) {
            if
            :: sequencer[e_].started && k <= sequencer[e_].last ->
                count = 0;
                for (i : 0 .. REPLICAS - 1) {
                    if
                    :: sequencer[e_].acknowledged[i] >= k -> count++
                    :: else
                    fi
                }
                next = sequencer[e_].log[k];
                if
#ifdef COMMIT_WITHOUT_OWN
                :: count >= COMMIT_QUANTITY && COPIES(next) >= DATA_QUANTITY ->
#else
                :: count >= COMMIT_QUANTITY && COPIES(next) >= DATA_QUANTITY && replica[HOME(e_)].data[next] ->
#endif
                    assert(committed[k] == 0 || committed[k] == next);
                    assert(COPIES(next) >= DATA_QUANTITY && replica[HOME(e_)].data[next]);
                    committed[k] = next
                :: else
                fi
            :: else
            fi
        }
    }
}

/* A sync of replica c, and its acknowledgement. */
inline sync(c) {
    if
    :: replica[c].unsynced == BOTH -> replica[c].data[replica[c].log[replica[c].last]] = 1
    :: else
    fi;
    replica[c].unsynced = NOTHING;
    check(c);
    if
    :: replica[c].log_epoch > 0 && replica[c].last > sequencer[replica[c].log_epoch].acknowledged[c] ->
        sequencer[replica[c].log_epoch].acknowledged[c] = replica[c].last
    :: else
    fi;
    commit()
}

/* Presence, at replica c. */
inline check(c) {
    for (k : 1 .. SLOTS) {
        if
        :: k <= replica[c].last && k <= replica[c].covered -> assert(COPIES(replica[c].log[k]) >= DATA_QUANTITY)
        :: k <= replica[c].last && k > replica[c].covered -> assert(replica[c].data[replica[c].log[k]])
        :: else
        fi
    }
}

/* `covered` may run ahead of a log, and says nothing about what another sequencer puts there. */
#ifdef COVERED_BEYOND_LOG
#define TOLD(c) replica[c].covered
#else
#define TOLD(c) (replica[c].covered < replica[c].last -> replica[c].covered : replica[c].last)
#endif

/* SEAL(e) reaches replica c: the promise and all that the answer tells are durable. */
#define CAN_SEAL(e, c) (e > replica[c].promised)
inline seal(e, c) {
    sync(c);
    replica[c].promised = e;
    if
    :: !sequencer[e].started ->
        sequencer[e].seal_ok[c].sent = 1;
        sequencer[e].seal_ok[c].log_epoch = replica[c].log_epoch;
        sequencer[e].seal_ok[c].last = replica[c].last;
        sequencer[e].seal_ok[c].covered = TOLD(c);
        for (k : 1 .. SLOTS) { sequencer[e].seal_ok[c].log[k] = replica[c].log[k] }
    :: else
    fi
}

/* The candidate of e has answers enough: it adopts the best log. Its replica can give the data above `covered`. */
#define OK(e) sequencer[e].seal_ok
#define IS_BETTER(a, b) (a.log_epoch > b.log_epoch || (a.log_epoch == b.log_epoch && a.last > b.last))
#define CAN_START(e) (!sequencer[e].started && OK(e)[0].sent + OK(e)[1].sent + OK(e)[2].sent >= SEAL_QUANTITY)
inline start(e) {
    best = NOBODY;
    for (i : 0 .. REPLICAS - 1) {
        if
        :: OK(e)[i].sent && best == NOBODY -> best = i
        :: OK(e)[i].sent && best != NOBODY && IS_BETTER(OK(e)[i], OK(e)[best]) -> best = i
        :: else
        fi
    }
    sequencer[e].started = 1;
    sequencer[e].adopted = OK(e)[best].last;
    sequencer[e].last = OK(e)[best].last;
    sequencer[e].covered = OK(e)[best].covered;
    for (k : 1 .. SLOTS) {
        sequencer[e].log[k] = OK(e)[best].log[k];
        assert(k > OK(e)[best].last || k <= OK(e)[best].covered || replica[best].data[OK(e)[best].log[k]])
    }
    for (i : 0 .. REPLICAS - 1) {
        OK(e)[i].sent = 0;
        OK(e)[i].log_epoch = 0;
        OK(e)[i].last = 0;
        OK(e)[i].covered = 0;
        for (k : 1 .. SLOTS) { OK(e)[i].log[k] = 0 }
    }
}

/* EPOCH_START(e) reaches replica c. The replica first makes the data above `covered` durable; then the adopted log
 * replaces its own, in one durable step. */
#define CAN_INSTALL(e, c) (sequencer[e].started && replica[c].log_epoch < e && e >= replica[c].promised)
inline install(e, c) {
    sync(c);
    replica[c].promised = e;
    replica[c].log_epoch = e;
    replica[c].last = sequencer[e].adopted;
    replica[c].covered = sequencer[e].covered;
    for (k : 1 .. SLOTS) {
        if
        :: k <= sequencer[e].adopted -> replica[c].log[k] = sequencer[e].log[k]
        :: else -> replica[c].log[k] = 0
        fi;
        if
#ifdef START_BEFORE_SYNC
        :: k == sequencer[e].adopted && k > sequencer[e].covered && !replica[c].data[sequencer[e].log[k]] ->
            replica[c].unsynced = BOTH
#endif
        :: k <= sequencer[e].adopted && k > sequencer[e].covered -> replica[c].data[sequencer[e].log[k]] = 1
        :: else
        fi
    }
    if
    :: replica[c].unsynced == NOTHING -> sync(c)
    :: else
    fi
}

/* The sequencer of e numbers an envelope that has arrived. */
#define IS_NEW(e, m) (sequencer[e].log[1] != m && sequencer[e].log[SLOTS] != m)
/* The first epoch begins with envelope 1: envelopes differ in nothing but their names. */
#define CAN_NUMBER(e, m) (sequencer[e].started && sequencer[e].last < SLOTS && IS_NEW(e, m) \
                          && (e > 1 || sequencer[e].last > 0 || m == 1))
inline number(e, m) {
    sequencer[e].last++;
    sequencer[e].log[sequencer[e].last] = m
}

/* The sequencer learns from reports and acknowledgements that one more number is covered. */
#define NEXT(e) sequencer[e].log[sequencer[e].covered + 1]
#define CAN_COVER(e) (sequencer[e].started && sequencer[e].covered < sequencer[e].last \
                      && COPIES(NEXT(e)) >= DATA_QUANTITY && replica[HOME(e)].data[NEXT(e)])

/* COMMIT_SUBMIT(e) reaches replica c, with or without what e knows to be covered. */
#define CAN_APPEND(e, c) (sequencer[e].started && replica[c].log_epoch == e && replica[c].promised == e \
                          && replica[c].last < sequencer[e].last && replica[c].unsynced == NOTHING)
inline append(e, c, how) {
    replica[c].last++;
    replica[c].log[replica[c].last] = sequencer[e].log[replica[c].last];
    replica[c].unsynced = how
}
#define HAS(e, c) (replica[c].data[sequencer[e].log[replica[c].last + 1]])
#ifdef ACK_WITHOUT_DATA
#define MAY_BE_BARE(e, c) 1
#else
#define MAY_BE_BARE(e, c) (HAS(e, c) || replica[c].last < replica[c].covered)
#endif

/* Replica c hears through where the order is covered. */
#ifdef COVERED_ACROSS_EPOCHS
#define CAN_HEAR(e, c) (sequencer[e].covered > replica[c].covered)
#else
#define CAN_HEAR(e, c) (sequencer[e].covered > replica[c].covered && replica[c].log_epoch == e)
#endif

/* An envelope reaches replica c before its number, and is synced. */
#define CAN_STORE(c, m) (!replica[c].data[m])
inline store(c, m) {
    sync(c);
    replica[c].data[m] = 1;
    commit()
}

/* Replica c crashes before its sync. Of entry and envelope come back: neither, the envelope, or (as good as a
 * sync) both; an entry alone is cut. An entry that was written without its envelope may come back. */
#define CAN_CRASH(c) (crashes < CRASHES && replica[c].unsynced != NOTHING)
inline lose(c) {
    crashes++;
    replica[c].log[replica[c].last] = 0;
    replica[c].last--;
    replica[c].unsynced = NOTHING
}
inline lose_entry(c) {
    replica[c].data[replica[c].log[replica[c].last]] = 1;
    lose(c);
    commit()
}
inline lose_envelope(c) {
    crashes++;
    replica[c].unsynced = NOTHING;
    sync(c)
}

#define STEP(guard, action) :: d_step { guard -> action; skip }

#define OF_EPOCH_AND_REPLICA(e, c) \
    STEP(CAN_SEAL(e, c), seal(e, c)) \
    STEP(CAN_INSTALL(e, c), install(e, c)) \
    STEP(CAN_APPEND(e, c) && !HAS(e, c), append(e, c, BOTH)) \
    STEP(CAN_APPEND(e, c) && MAY_BE_BARE(e, c), append(e, c, ENTRY)) \
    STEP(CAN_HEAR(e, c), replica[c].covered = sequencer[e].covered)

#define OF_EPOCH(e) \
    STEP(CAN_START(e), start(e)) \
    STEP(CAN_NUMBER(e, 1), number(e, 1)) \
    STEP(CAN_NUMBER(e, 2), number(e, 2)) \
    STEP(CAN_COVER(e), sequencer[e].covered++) \
    OF_EPOCH_AND_REPLICA(e, 0) \
    OF_EPOCH_AND_REPLICA(e, 1) \
    OF_EPOCH_AND_REPLICA(e, 2)

#ifdef RECOVER_WITHOUT_DATA
#define KEEP_ENTRY(c) STEP(CAN_CRASH(c), lose_envelope(c))
#else
#define KEEP_ENTRY(c)
#endif
#define OF_REPLICA(c) \
    STEP(replica[c].unsynced != NOTHING, sync(c)) \
    STEP(CAN_STORE(c, 1), store(c, 1)) \
    STEP(CAN_STORE(c, 2), store(c, 2)) \
    STEP(CAN_CRASH(c), lose(c)) \
    STEP(CAN_CRASH(c) && replica[c].unsynced == BOTH, lose_entry(c)) \
    KEEP_ENTRY(c)

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
    OF_REPLICA(0)
    OF_REPLICA(1)
    OF_REPLICA(2)
    od
}
