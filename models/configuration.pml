/* The handover from one configuration to the next: a log that two sets of commit servers write, one after the other.
 *
 * What is modelled
 *     The old configuration C and the new one C', given by the bit masks OLD and NEW over SERVERS commit servers;
 *     each commits and seals with a majority of its own. Epochs 1 .. EPOCHS belong to one of the two, and all of
 *     them come from one counter. A sequencer of C may append CONFIG, and assigns nothing after it. Once CONFIG is
 *     committed in C, whoever learns so is in C' and answers epochs of C no more; the others still do, and a
 *     candidate of C that finds CONFIG in the log it adopts commits it once more and assigns nothing. A candidate
 *     of C' stands where CONFIG is known to be committed, and so a SEAL of C' is answered. Servers that are new or
 *     behind learn the log from those that know it to be committed. Everything else, messages above all, is as in
 *     sequencer_change.pml: whole logs, taken late, twice or never.
 *
 * What is left out
 *     A third configuration (C' changes again just as C did), data servers and checkpoint servers, which change by
 *     the same entry, suffixes, payloads, damaged disks, time.
 *
 * The property
 *     Agreement: once a number is committed, in whatever epoch and configuration, it is never committed with another
 *     entry.
 *
 * One rule needs more than one configuration to be seen: a candidate of C' puts a log that was last written in C' above
 * every log last written in C, whatever their epochs. This is why:
 *     1. A sequencer of C, epoch 1, commits CONFIG at servers 0, 1 and 2. Only server 0 learns that it is committed.
 *     2. Server 0 seals C' with epoch 2 at servers 0 and 3, and commits an entry behind CONFIG there.
 *     3. Server 2 has heard of none of this and stands in C with epoch 3. Servers 1 and 2 answer, it finds CONFIG in
 *        their logs and commits it once more. The log of server 1, now of epoch 3, ends with CONFIG.
 *     4. Server 1 learns that CONFIG is committed and stands in C' with epoch 4. Servers 1 and 3 answer. By epochs
 *        alone the log of server 1 is the better one, and the entry of step 2 is lost.
 *
 * Flags: mistakes that must be found
 *     APPLY_EARLY        CONFIG counts as soon as it is in a log, committed or not
 *     CONFIG_BY_NUMBER   a server that holds a CONFIG takes it for the committed one because its number is committed
 *     TWO_CHANGES        a sequencer goes on assigning numbers of C after CONFIG
 *     NEW_SERVER_VOTES   a server that is new in C' answers a SEAL without having the log (seen from 1 to 3)
 *     EPOCHS_ALONE       logs are compared by (log_epoch, last) whatever the configuration (4 epochs)
 *
 * Bounds
 *     EPOCHS (3), SLOTS (2), and one of: 3 -> 3 with one replaced (the default), 1 -> 3 (-DOLD=1 -DNEW=7 -DSERVERS=3).
 *     EPOCHS_OF_NEW, a bit mask, says which epochs are of C'; without it each may be of either. Four epochs are too
 *     many without it: -DEPOCHS=4 -DEPOCHS_OF_NEW=20 are the four of the story above.
 */

#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef SERVERS
#define SERVERS 4
#endif
#ifndef OLD
#define OLD 7       /* servers 0, 1, 2 */
#endif
#ifndef NEW
#define NEW 11      /* servers 0, 1, 3 */
#endif

/* Configurations have the numbers 1 and 2. */
#define C_OLD 1
#define C_NEW 2
#define MASK(configuration) (configuration == C_OLD -> OLD : NEW)
#define IS_IN(c, configuration) ((MASK(configuration) >> (c)) & 1)
#define SIZE(mask) ((mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1) + (mask >> 3 & 1))
#define QUANTITY(configuration) (SIZE(MASK(configuration)) / 2 + 1)

/* An entry is named after the epoch that numbered it; 0 is none. So is a CONFIG, the entry that makes C'. */
#define CONFIG(e) (10 + e)
#define IS_CONFIG(entry) (entry > 10)
#define NOBODY SERVERS

/* A commit server: all of it durable. `configuration` is what it knows to be in force, log_configuration the one
 * whose epoch wrote its log last. */
typedef CommitServer {
    byte configuration;
    byte promised;
    byte log_configuration;
    byte log_epoch;
    byte last;
    byte log[SLOTS + 1]
}
CommitServer server[SERVERS];

/* What a commit server answered to a SEAL, as it was then. */
typedef SealOk {
    bit sent;
    byte log_configuration;
    byte log_epoch;
    byte last;
    byte log[SLOTS + 1]
}

/* A sequencer, by its epoch: its configuration is 0 until it is claimed. */
typedef Sequencer {
    byte configuration;
    bit started;
    byte adopted;
    byte last;
    byte log[SLOTS + 1];
    byte acknowledged[SERVERS];
    SealOk seal_ok[SERVERS]
}
Sequencer sequencer[EPOCHS + 1];

/* The entry first committed at a number. */
byte committed[SLOTS + 1];

/* Only of use within one step, so no part of the state. */
hidden byte k, i, best;

/* Where CONFIG stands in a log; 0 if nowhere. */
#if SLOTS == 1
#define CONFIG_AT(log) (IS_CONFIG(log[1]) -> 1 : 0)
#elif SLOTS == 2
#define CONFIG_AT(log) (IS_CONFIG(log[1]) -> 1 : (IS_CONFIG(log[2]) -> 2 : 0))
#elif SLOTS == 3
#define CONFIG_AT(log) (IS_CONFIG(log[1]) -> 1 : (IS_CONFIG(log[2]) -> 2 : (IS_CONFIG(log[3]) -> 3 : 0)))
#endif

/* Has the sequencer of e committed a number? Only servers of its configuration ever acknowledge. */
#define HAS_ACKNOWLEDGED(c, e, number) (sequencer[e].acknowledged[c] >= number)
#if SERVERS == 4
#define ACKNOWLEDGED(e, number) (HAS_ACKNOWLEDGED(0, e, number) + HAS_ACKNOWLEDGED(1, e, number) \
                                 + HAS_ACKNOWLEDGED(2, e, number) + HAS_ACKNOWLEDGED(3, e, number))
#else
#define ACKNOWLEDGED(e, number) (HAS_ACKNOWLEDGED(0, e, number) + HAS_ACKNOWLEDGED(1, e, number) \
                                 + HAS_ACKNOWLEDGED(2, e, number))
#endif
#define HAS_COMMITTED(e, number) (ACKNOWLEDGED(e, number) >= QUANTITY(sequencer[e].configuration))

/* COMMIT_ACKNOWLEDGE(e, last) of server c, and what it commits. */
inline acknowledge(e, c) {
    sequencer[e].acknowledged[c] = server[c].last;
    for (k : 1 .. SLOTS) {
        if
        :: HAS_COMMITTED(e, k) ->
            assert(committed[k] == 0 || committed[k] == sequencer[e].log[k]);
            committed[k] = sequencer[e].log[k]
        :: else
        fi
    }
}

/* Somebody claims epoch e: in C at any time, in C' a server that knows C' to be in force. An epoch is above all
 * that its candidate has seen, the epoch that numbered CONFIG among them. */
#define CAN_STAND(c, e) (IS_IN(c, C_NEW) && server[c].configuration == C_NEW && server[c].promised < e \
                         && server[c].log[CONFIG_AT(server[c].log)] < CONFIG(e))
#if SERVERS == 4
#define CAN_ANYBODY_STAND(e) (CAN_STAND(0, e) || CAN_STAND(1, e) || CAN_STAND(2, e) || CAN_STAND(3, e))
#else
#define CAN_ANYBODY_STAND(e) (CAN_STAND(0, e) || CAN_STAND(1, e) || CAN_STAND(2, e))
#endif
#ifdef EPOCHS_OF_NEW
#define MAY_BE_OF(e, which) ((EPOCHS_OF_NEW >> e & 1) == (which == C_NEW))
#else
#define MAY_BE_OF(e, which) true
#endif
#define CAN_CLAIM(e, which) (sequencer[e].configuration == 0 && MAY_BE_OF(e, which) \
                             && (which == C_OLD || CAN_ANYBODY_STAND(e)))

/* SEAL(e) reaches server c. It answers in the configuration it is in. */
#ifdef NEW_SERVER_VOTES
#define HAS_LOG(e, c) (server[c].configuration == sequencer[e].configuration \
                       || (sequencer[e].configuration == C_NEW && !IS_IN(c, C_OLD)))
#else
#define HAS_LOG(e, c) (server[c].configuration == sequencer[e].configuration)
#endif
#define CAN_SEAL(e, c) (sequencer[e].configuration != 0 && e > server[c].promised \
                        && IS_IN(c, sequencer[e].configuration) && HAS_LOG(e, c))
inline seal(e, c) {
    server[c].promised = e;
    if
    :: !sequencer[e].started ->     /* who has started hears no more answers */
        sequencer[e].seal_ok[c].sent = 1;
        sequencer[e].seal_ok[c].log_configuration = server[c].log_configuration;
        sequencer[e].seal_ok[c].log_epoch = server[c].log_epoch;
        sequencer[e].seal_ok[c].last = server[c].last;
        for (k : 1 .. SLOTS) { sequencer[e].seal_ok[c].log[k] = server[c].log[k] }
    :: else
    fi
}

#define IS_LATER(a, b) (a.log_epoch > b.log_epoch || (a.log_epoch == b.log_epoch && a.last > b.last))
#ifdef EPOCHS_ALONE
#define IS_BETTER(a, b) (IS_LATER(a, b))
#else
#define IS_BETTER(a, b) (a.log_configuration > b.log_configuration \
                         || (a.log_configuration == b.log_configuration && IS_LATER(a, b)))
#endif

/* The candidate of e has answers enough: it adopts the best log. The answers are then forgotten. */
#define OK(e) sequencer[e].seal_ok
#if SERVERS == 4
#define ANSWERS(e) (OK(e)[0].sent + OK(e)[1].sent + OK(e)[2].sent + OK(e)[3].sent)
#else
#define ANSWERS(e) (OK(e)[0].sent + OK(e)[1].sent + OK(e)[2].sent)
#endif
#define CAN_START(e) (sequencer[e].configuration != 0 && !sequencer[e].started \
                      && ANSWERS(e) >= QUANTITY(sequencer[e].configuration))
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
        OK(e)[i].log_configuration = 0;
        OK(e)[i].log_epoch = 0;
        OK(e)[i].last = 0;
        for (k : 1 .. SLOTS) { OK(e)[i].log[k] = 0 }
    }
}

/* EPOCH_START(e) reaches server c: the adopted log replaces its own, under e. One of C' carries CONFIG with everything
 * before it, so whoever takes it is in C'; whoever is in C' takes none of C. */
#define CAN_INSTALL(e, c) (sequencer[e].started && IS_IN(c, sequencer[e].configuration) && server[c].log_epoch < e \
                           && e >= server[c].promised && sequencer[e].configuration >= server[c].configuration)
inline install(e, c) {
    server[c].configuration = sequencer[e].configuration;
    server[c].promised = e;
    server[c].log_configuration = sequencer[e].configuration;
    server[c].log_epoch = e;
    server[c].last = sequencer[e].adopted;
    for (k : 1 .. SLOTS) {
        if
        :: k <= sequencer[e].adopted -> server[c].log[k] = sequencer[e].log[k]
        :: else -> server[c].log[k] = 0
        fi
    }
    acknowledge(e, c)
}

/* The sequencer of e numbers one more entry. In C none follows CONFIG. */
#ifdef TWO_CHANGES
#define IS_OPEN(e) true
#else
#define IS_OPEN(e) (sequencer[e].configuration == C_NEW || CONFIG_AT(sequencer[e].log) == 0)
#endif
#define CAN_ASSIGN(e) (sequencer[e].started && sequencer[e].last < SLOTS && IS_OPEN(e))
#define CAN_CHANGE(e) (CAN_ASSIGN(e) && sequencer[e].configuration == C_OLD && CONFIG_AT(sequencer[e].log) == 0)
inline assign(e, entry) {
    sequencer[e].last++;
    sequencer[e].log[sequencer[e].last] = entry
}

/* COMMIT_SUBMIT(e) reaches server c: it appends the next entry, only to a log of e, and acknowledges. */
#define CAN_APPEND(e, c) (server[c].log_epoch == e && server[c].promised == e && server[c].last < sequencer[e].last \
                          && server[c].configuration == sequencer[e].configuration)
inline append(e, c) {
    server[c].last++;
    server[c].log[server[c].last] = sequencer[e].log[server[c].last];
    acknowledge(e, c)
}

/* Server c, which holds CONFIG, hears that it is committed: for c the configuration C is over. Whoever says so must
 * speak of the log that c holds, which only the sequencer of its log_epoch does. */
#define HOLDS_CONFIG(c) (server[c].configuration == C_OLD && CONFIG_AT(server[c].log) != 0)
#if defined(APPLY_EARLY)
#define CAN_RETIRE(c) (HOLDS_CONFIG(c))
#elif defined(CONFIG_BY_NUMBER)
#define CAN_RETIRE(c) (HOLDS_CONFIG(c) && IS_CONFIG(committed[CONFIG_AT(server[c].log)]))
#else
#define CAN_RETIRE(c) (HOLDS_CONFIG(c) && HAS_COMMITTED(server[c].log_epoch, CONFIG_AT(server[c].log)))
#endif

/* Server c of C', new or behind, learns from a server that is in C' all up to CONFIG, as committed. */
#define CAN_LEARN(c, from) (IS_IN(c, C_NEW) && server[c].configuration != C_NEW && server[from].configuration == C_NEW)
inline learn(c, from) {
    server[c].configuration = C_NEW;
    server[c].last = CONFIG_AT(server[from].log);
    for (k : 1 .. SLOTS) {
        if
        :: k <= server[c].last -> server[c].log[k] = server[from].log[k]
        :: else -> server[c].log[k] = 0
        fi
    }
}

/* One thing that may happen. A d_step may not end with a loop, hence the last word. */
#define STEP(guard, action) :: d_step { guard -> action; skip }

#define OF_EPOCH(e) \
    STEP(CAN_CLAIM(e, C_OLD), sequencer[e].configuration = C_OLD) \
    STEP(CAN_CLAIM(e, C_NEW), sequencer[e].configuration = C_NEW) \
    STEP(CAN_START(e), start(e)) \
    STEP(CAN_ASSIGN(e), assign(e, e)) \
    STEP(CAN_CHANGE(e), assign(e, CONFIG(e))) \
    OF_EPOCH_AND_SERVER(e, 0) \
    OF_EPOCH_AND_SERVER(e, 1) \
    OF_EPOCH_AND_SERVER(e, 2) \
    OF_EPOCH_AND_SERVER_3(e)

#define OF_EPOCH_AND_SERVER(e, c) \
    STEP(CAN_SEAL(e, c), seal(e, c)) \
    STEP(CAN_INSTALL(e, c), install(e, c)) \
    STEP(CAN_APPEND(e, c), append(e, c))

#if SERVERS == 4
#define OF_EPOCH_AND_SERVER_3(e) OF_EPOCH_AND_SERVER(e, 3)
#else
#define OF_EPOCH_AND_SERVER_3(e)
#endif

#define OF_SERVER(c) \
    STEP(CAN_RETIRE(c), server[c].configuration = C_NEW) \
    STEP(CAN_LEARN(c, 0), learn(c, 0)) \
    STEP(CAN_LEARN(c, 1), learn(c, 1)) \
    STEP(CAN_LEARN(c, 2), learn(c, 2)) \
    LEARN_FROM_3(c)
#if SERVERS == 4
#define LEARN_FROM_3(c) STEP(CAN_LEARN(c, 3), learn(c, 3))
#else
#define LEARN_FROM_3(c)
#endif

active proctype world() {
    d_step {
        for (i : 0 .. SERVERS - 1) {
            if
            :: IS_IN(i, C_OLD) -> server[i].configuration = C_OLD
            :: else
            fi
        }
        skip
    }
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
    OF_SERVER(0)
    OF_SERVER(1)
    OF_SERVER(2)
#if SERVERS == 4
    OF_SERVER(3)
#endif
    od
}
