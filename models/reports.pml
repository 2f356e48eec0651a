/* Data servers and their reports: what is given up stays given up, what is committed can be read, nothing is forgotten.
 *
 * What is modelled
 *     Three data servers, messages 1 .. MESSAGES with a producer each, and the sequencer, which sits on the node of one
 *     data server. A message bears the timestamp ts, the largest committed number its producer knew (or an older one)
 *     when it first sent it. DATA reaches a data server, is written, synced, reported. The sequencer numbers a message
 *     when DATA_QUANTITY servers have reported it, its own among them, and only with a number of at most ts + LIFETIME
 *     (rule X); what its own server lacks it fetches from who reported it. Other traffic takes numbers too.
 *     The log is one, as sequencer_change.pml shows it to be. A new sequencer, on any node, keeps all that is
 *     committed, loses any part of the rest, and knows of no report; data servers report again whatever is not yet
 *     committed.
 *     A data server that knows the committed log without a gap beyond ts + LIFETIME, and does not find the message in
 *     it, deletes the message and tells its producer that it has definitely failed. Servers crash and lose what is
 *     not synced; producers die, and then send nothing any more.
 *
 * What is left out
 *     Commit servers, the order of one producer's messages and its opening and fencing, checkpoints, which delete
 *     what is committed, and the loss of disks.
 *
 * The properties
 *     Definite failure: a message whose producer was told that it failed is never committed.
 *     Payload: what is committed lies at some data server.
 *     Nothing is forgotten: when everything that can happen has happened, a message that is synced at DATA_QUANTITY
 *     servers is committed, or its lifetime is over.
 *
 * Flags: mistakes that must be found
 *     REPORT_BEFORE_SYNC     a data server reports what it has written but not synced
 *     FRESH_TS_ON_RETRY      a producer that sends again takes a new timestamp
 *     NO_REREPORT            a data server reports a message again only if its producer sends it again
 *     SETTLE_ON_SUBMIT       a data server takes a message for settled when it is numbered, not when it is committed
 *     EXPIRED_BY_SEQUENCER   a sequencer's refusal, made by numbers that are not committed yet, counts as definite
 *
 * Bounds
 *     MESSAGES (2), OTHERS (1) numbers of other traffic, CHANGES (1) of sequencer, CRASHES (2), LIFETIME (1).
 */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef CHANGES
#define CHANGES 1
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef LIFETIME
#define LIFETIME 1
#endif
#define SERVERS 3
#define DATA_QUANTITY 2

/* A data server: its copies, and how far it knows the committed log without a gap. */
#define NONE 0
#define WRITTEN 1
#define SYNCED 2
typedef DataServer {
    byte copy[MESSAGES + 1];
    byte known;
#ifdef FRESH_TS_ON_RETRY
    byte ts[MESSAGES + 1];
#endif
#ifdef NO_REREPORT
    bit has_reported[MESSAGES + 1];
#endif
#ifdef SETTLE_ON_SUBMIT
    bit is_settled[MESSAGES + 1];
#endif
}
DataServer server[SERVERS];

/* A message: what its producer does, and has been told. `number` is its place in the log, 0 if it has none. */
#define UNSENT 0
#define SENT 1
#define DEAD 2
typedef Message {
    byte producer;
    byte ts;
    byte number;
    bit told_failed;
    bit reported_by[SERVERS]    /* as the sequencer knows */
}
Message message[MESSAGES + 1];

/* The sequencer. Numbers up to `last` that are no message's are other traffic. */
byte node;
byte last;
byte committed_upto;

byte others, changes, crashes;

/* Only of use within one step, so no part of the state. */
hidden byte i, j;

/* The timestamp of a message as server d holds it. */
#ifdef FRESH_TS_ON_RETRY
#define TS(m, d) server[d].ts[m]
#else
#define TS(m, d) message[m].ts
#endif

#define IS_COMMITTED(m) (message[m].number != 0 && message[m].number <= committed_upto)
#define KNOWS_COMMITTED(m, d) (message[m].number != 0 && message[m].number <= server[d].known)
#define KNOWS_PAST(d, ts) (server[d].known > ts + LIFETIME)
#define COPIES(m) ((server[0].copy[m] != NONE) + (server[1].copy[m] != NONE) + (server[2].copy[m] != NONE))
#define SYNCED_COPIES(m) ((server[0].copy[m] == SYNCED) + (server[1].copy[m] == SYNCED) + (server[2].copy[m] == SYNCED))

inline tell_failed(m) {
    message[m].told_failed = 1;
    assert(!(message[m].told_failed && IS_COMMITTED(m)))
}

/* A producer sends for the first time. Messages differ by their names only, so they are sent in order. */
#define CAN_SEND(m, ts) (message[m].producer == UNSENT && ts <= committed_upto \
                         && (m == 1 || message[m - 1].producer != UNSENT))
inline send(m, stamp) {
    message[m].producer = SENT;
    message[m].ts = stamp
}

/* A producer dies; what it has on the way is lost. */
#define CAN_DIE(m) (message[m].producer == SENT)

/* DATA reaches server d, the first time or again. */
#define CAN_STORE(m, d) (message[m].producer == SENT && server[d].copy[m] == NONE && !KNOWS_COMMITTED(m, d) \
                         && !(KNOWS_PAST(d, message[m].ts) && message[m].told_failed))
inline store(m, d) {
    if
    :: KNOWS_PAST(d, message[m].ts) -> tell_failed(m)
    :: else ->
        server[d].copy[m] = WRITTEN;
#ifdef FRESH_TS_ON_RETRY
        TS(m, d) = message[m].ts
#endif
    fi
}

#define CAN_SYNC(m, d) (server[d].copy[m] == WRITTEN)

/* DATA_REPORT of server d reaches the sequencer, which refuses what it may not number any more. */
#ifdef REPORT_BEFORE_SYNC
#define IS_REPORTABLE(m, d) (server[d].copy[m] != NONE)
#else
#define IS_REPORTABLE(m, d) (server[d].copy[m] == SYNCED)
#endif
#if defined(NO_REREPORT)
#define IS_DUE(m, d) (!server[d].has_reported[m] || message[m].producer == SENT)
#elif defined(SETTLE_ON_SUBMIT)
#define IS_DUE(m, d) (!server[d].is_settled[m])
#else
#define IS_DUE(m, d) true
#endif
#define IS_LATE(ts) (last + 1 > ts + LIFETIME)
#define CAN_REPORT(m, d) (IS_REPORTABLE(m, d) && IS_DUE(m, d) && message[m].number == 0 && !message[m].reported_by[d] \
                          && !IS_LATE(TS(m, d)))
inline report(m, d) {
    message[m].reported_by[d] = 1;
#ifdef NO_REREPORT
    server[d].has_reported[m] = 1
#endif
}

/* The sequencer fetches for its own server what server d has reported. */
#define CAN_FETCH(m, d) (message[m].reported_by[d] && server[d].copy[m] == SYNCED && server[node].copy[m] == NONE \
                         && message[m].number == 0 && !KNOWS_PAST(node, TS(m, d)))
inline fetch(m, d) {
    server[node].copy[m] = WRITTEN;
#ifdef FRESH_TS_ON_RETRY
    TS(m, node) = TS(m, d)
#endif
}

/* The sequencer numbers a message, and holds reports with another timestamp for those of another message. */
#define COUNTS(m, d) (message[m].reported_by[d] && TS(m, d) == TS(m, node))
#define CAN_ASSIGN(m) (message[m].number == 0 && message[m].reported_by[node] && !IS_LATE(TS(m, node)) \
                       && COUNTS(m, 0) + COUNTS(m, 1) + COUNTS(m, 2) >= DATA_QUANTITY)
inline assign(m) {
    last++;
    message[m].number = last;
    for (i : 0 .. SERVERS - 1) { message[m].reported_by[i] = 0 }
}

#define CAN_COMMIT (committed_upto < last)
inline commit() {
    committed_upto++;
    for (i : 1 .. MESSAGES) {
        if
        :: message[i].number == committed_upto ->
            assert(!message[i].told_failed);
            assert(COPIES(i) > 0)
        :: else
        fi
    }
}

/* Server d hears of one more committed number. What it knows committed is settled. */
#define CAN_LEARN(d) (server[d].known < committed_upto)

/* Server d gives a message up. */
#define CAN_GIVE_UP(m, d) (server[d].copy[m] != NONE && KNOWS_PAST(d, TS(m, d)) && !KNOWS_COMMITTED(m, d))
inline give_up(m, d) {
    server[d].copy[m] = NONE;
    tell_failed(m)
}

/* Another sequencer, on any node, with the log up to `kept`. */
#define CAN_CHANGE(kept) (changes < CHANGES && committed_upto <= kept && kept <= last)
inline change(where, kept) {
    changes++;
    node = where;
    last = kept;
    for (j : 1 .. MESSAGES) {
        if
        :: message[j].number > kept -> message[j].number = 0
        :: else
        fi;
        for (i : 0 .. SERVERS - 1) { message[j].reported_by[i] = 0 }
    }
}

/* Server d crashes and comes back without what it had not synced. */
#if MESSAGES == 1
#define HAS_UNSYNCED(d) (server[d].copy[1] == WRITTEN)
#else
#define HAS_UNSYNCED(d) (server[d].copy[1] == WRITTEN || server[d].copy[2] == WRITTEN)
#endif
#define CAN_CRASH(d) (crashes < CRASHES && HAS_UNSYNCED(d))
inline crash(d) {
    crashes++;
    for (i : 1 .. MESSAGES) {
        if
        :: server[d].copy[i] == WRITTEN ->
            server[d].copy[i] = NONE;
            assert(COPIES(i) > 0 || !IS_COMMITTED(i))
        :: else
        fi
    }
}

/* Nothing can happen any more. (Copies with different timestamps pass for different messages, so a fresh timestamp
 * makes a hindrance of what is meant as help; that mistake is to be found by what it does to safety.) */
inline check_nothing_is_forgotten() {
#ifdef FRESH_TS_ON_RETRY
    skip
#else
    for (i : 1 .. MESSAGES) {
        assert(IS_LATE(message[i].ts) || IS_COMMITTED(i) || SYNCED_COPIES(i) < DATA_QUANTITY)
    }
#endif
}

/* One thing that may happen. A d_step may not end with a loop, hence the last word. */
#define STEP(guard, action) :: d_step { guard -> action; skip }

#define OF_MESSAGE(m) \
    STEP(CAN_SEND(m, 0), send(m, 0)) \
    STEP(CAN_SEND(m, 1), send(m, 1)) \
    STEP(CAN_SEND(m, 2), send(m, 2)) \
    STEP(CAN_DIE(m), message[m].producer = DEAD) \
    STEP(CAN_ASSIGN(m), assign(m)) \
    OF_MESSAGE_AND_SERVER(m, 0) \
    OF_MESSAGE_AND_SERVER(m, 1) \
    OF_MESSAGE_AND_SERVER(m, 2)

#define OF_MESSAGE_AND_SERVER(m, d) \
    STEP(CAN_STORE(m, d), store(m, d)) \
    STEP(CAN_SYNC(m, d), server[d].copy[m] = SYNCED) \
    STEP(CAN_REPORT(m, d), report(m, d)) \
    STEP(CAN_FETCH(m, d), fetch(m, d)) \
    STEP(CAN_GIVE_UP(m, d), give_up(m, d)) \
    MISTAKES(m, d)

#if defined(FRESH_TS_ON_RETRY)
#define MISTAKES(m, d) STEP(message[m].producer == SENT && !message[m].told_failed && message[m].ts < committed_upto, \
                            message[m].ts = committed_upto)
#elif defined(SETTLE_ON_SUBMIT)
#define MISTAKES(m, d) STEP(message[m].number != 0 && !server[d].is_settled[m], server[d].is_settled[m] = 1)
#elif defined(EXPIRED_BY_SEQUENCER)
#define MISTAKES(m, d) STEP(message[m].number == 0 && server[d].copy[m] == SYNCED && IS_LATE(TS(m, d)) \
                            && !message[m].told_failed, tell_failed(m))
#else
#define MISTAKES(m, d)
#endif

#define OF_SERVER(d) \
    STEP(CAN_LEARN(d), server[d].known++) \
    STEP(CAN_CRASH(d), crash(d)) \
    STEP(CAN_CHANGE(0), change(d, 0)) \
    STEP(CAN_CHANGE(1), change(d, 1)) \
    STEP(CAN_CHANGE(2), change(d, 2)) \
    STEP(CAN_CHANGE(3), change(d, 3)) \
    STEP(CAN_CHANGE(4), change(d, 4))
#if MESSAGES + OTHERS > 4
#error "a change of sequencer keeps at most four numbers here"
#endif

active proctype world() {
end:
    do
    OF_MESSAGE(1)
#if MESSAGES >= 2
    OF_MESSAGE(2)
#endif
    OF_SERVER(0)
    OF_SERVER(1)
    OF_SERVER(2)
    STEP(others < OTHERS, others++; last++)
    STEP(CAN_COMMIT, commit())
    :: timeout -> d_step { check_nothing_is_forgotten(); skip }; break
    od
}
