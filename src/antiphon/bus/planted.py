"""Bugs that can be planted on purpose, to see whether the checkers still see.

Each is one marked line in the role it concerns. A simulator that no longer finds one of them has
gone blind; nothing but tests and the simulator ever plants one.
"""

from __future__ import annotations

from typing import Final

ACKNOWLEDGE_BEFORE_FSYNC: Final = "acknowledge-before-fsync"
"""Commit server and data server answer without waiting for the disk."""

RELEASE_BY_EARLIER_SYNC: Final = "release-by-earlier-sync"
"""Any finished sync releases every held reply, also those written after it began."""

DEDUP_OFF: Final = "dedup-off"
"""The sequencer numbers an envelope again when it is reported again."""

FIFO_OFF: Final = "fifo-off"
"""The sequencer numbers the envelopes of a producer in the order in which they are reported."""

NEVER_REREPORT: Final = "never-rereport"
"""A data server reports what became durable once, to whoever leads then, and never again."""

DELIVER_BEFORE_DURABLE: Final = "deliver-before-durable"
"""The member applies what is committed and has arrived, though it is not synced here."""

REFRESH_TS: Final = "refresh-ts"
"""A producer that sends an envelope again gives it a new ts, so that it outlives its lifetime."""

EXCEPTIONS_OF_OTHERS_KEPT: Final = "exceptions-of-others-kept"
"""A producer keeps what became of everybody's commands, also while it waits for nothing."""

HEARD_IS_DOUBTED: Final = "heard-is-doubted"
"""A producer orders again whatever the table of outcomes has forgotten, also what it has heard of."""

HELD_SPACE_IGNORED: Final = "held-space-ignored"
"""The sequencer has a checkpoint after so many entries or bytes, and hears of no journal that is too long."""

SEAL_QUANTITY_ONE: Final = "seal-quantity-one"
"""A candidate is content with one promise, its own."""

NO_FENCE: Final = "no-fence"
"""The commit server takes submits and starts of an epoch below its promise."""

ADOPT_LONGEST: Final = "adopt-longest"
"""A candidate adopts the longest log, whichever epoch wrote it."""

NO_RESUBMIT: Final = "no-resubmit"
"""A candidate counts what servers held in an older epoch as held in its own."""

RAISE_COMMITTED_FROM_ANY_EPOCH: Final = "raise-committed-from-any-epoch"
"""The commit server believes any epoch about which of its own entries are committed."""

KEEP_OWN_SUFFIX: Final = "keep-own-suffix"
"""A candidate keeps its own entries up to what others know to be committed, unseen."""

OWN_REPORT_NOT_REQUIRED: Final = "own-report-not-required"
"""The sequencer numbers what its own data server does not hold."""

CONFIG_BEFORE_COMMIT: Final = "config-before-commit"
"""A new configuration rules as soon as it is numbered: its own servers decide whether it is committed."""

TWO_CHANGES_AT_ONCE: Final = "two-changes-at-once"
"""The sequencer numbers a second configuration before the first one is committed."""

VOTE_AFTER_DAMAGE: Final = "vote-after-damage"
"""A commit server promises although its disk is damaged, or not the one that is listed."""

NEGATIVE_AFTER_DAMAGE: Final = "negative-after-damage"
"""A damaged commit server answers that it does not have an entry."""

GARBAGE_BEFORE_STABLE: Final = "garbage-before-stable"
"""The base moves, and space is released, before a checkpoint is known to be stable."""

HELD_RANGES_IGNORED: Final = "held-ranges-ignored"
"""A new primary does not listen to what consumers that live still hold, and hands it out again."""

LOWER_GENERATION_ACCEPTED: Final = "lower-generation-accepted"
"""The fold takes commands of a session that a former client manager still had in its queues."""

ACKNOWLEDGED_TWICE: Final = "acknowledged-twice"
"""The fold accepts an acknowledgement of what somebody has acknowledged before."""

OLD_TERM_ACCEPTED: Final = "old-term-accepted"
"""The fold does what a primary proposed that is none any more."""

MISREAD_PUTS_ASIDE: Final = "misread-puts-aside"
"""At start a checkpoint that verifies and does not read is taken for a ruined disk."""

FLOOR_IGNORED: Final = "floor-ignored"
"""A replica shows a page before it has applied what was confirmed to whoever asks."""

LOSS_NOT_TOLD: Final = "loss-not-told"
"""A client manager does not tell connected clients what a new primary gave to others."""

LOSS_FORGOTTEN: Final = "loss-forgotten"
"""A new primary does not say which messages that a consumer holds it has given to others."""

DECISION_NOT_ORDERED: Final = "decision-not-ordered"
"""A client manager carries a commit out as soon as all are ready; whether the home channel decides so comes
out later."""

PARTICIPANT_DECIDES_ALONE: Final = "participant-decides-alone"
"""The primary of a participant rolls back what it has prepared when nobody has come for a while."""

CHECKPOINT_FORGETS_TRANSACTIONS: Final = "checkpoint-forgets-transactions"
"""A checkpoint holds nothing of transactions: whoever begins with it knows of none that are under way."""

HOLD_BEGUN_ANEW: Final = "hold-begun-anew"
"""Whoever says again what he holds begins anew: what was kept for him until then goes."""

COUNT_STUCK: Final = "count-stuck"
"""What is given back a second time counts as given back once."""

CREDIT_KEPT: Final = "credit-kept"
"""A client manager itself answers who drains a consumer: the primary goes on sending on the old credit."""

RETURNED_LAST: Final = "returned-last"
"""What was given back goes out behind everything that was not."""

OPEN_SURVIVES_FENCE: Final = "open-survives-fence"
"""What was open at a client manager that is fenced stays open."""

DECISION_ENDS_WITH_SESSION: Final = "decision-ends-with-session"
"""A home takes what it decided for carried out when the session ends, though participants still have to."""

WALL_CLOCK_BELIEVED: Final = "wall-clock-believed"
"""The channel's time is what the wall clock of its primary says, unless that is earlier than before."""

OUTDATED_HOLD_TAKEN: Final = "outdated-hold-taken"
"""The fold takes a HOLD that was said before the hold of this name ended: what was released lives again."""

RESTORE_FORGETS_LOCKS: Final = "restore-forgets-locks"
"""A state that was restored does not lock the queues that somebody has for himself."""

CHECKPOINT_BEFORE_RECORDS: Final = "checkpoint-before-records"
"""The file of a checkpoint is written while records that it refers to are still on their way to the disk."""

FALLBACK_SEGMENTS_FREED: Final = "fallback-segments-freed"
"""Segments that only the older checkpoint refers to are used again."""

REFERENCES_IGNORED: Final = "references-ignored"
"""A segment is used again when its order is covered, whatever is live in it: others are asked for that."""

DEAD_KEEP_SEGMENTS: Final = "dead-keep-segments"
"""A segment in which something was live when space was released is never used again."""

AGED_ONE_TOO_MANY: Final = "aged-one-too-many"
"""When messages of a topic are too old, the one behind them goes with them."""

SHED_ONE_TOO_MANY: Final = "shed-one-too-many"
"""When a topic keeps too many bytes, one message more goes than must."""

LATE_WORD_DETACHES: Final = "late-word-detaches"
"""A primary takes the word that a client is gone for true under any generation of its session."""

EXPIRED_THOUGH_RESUMED: Final = "expired-though-resumed"
"""A primary ends a session that was without an owner for a while, though it has one again."""

STANDING_CLOCK_TRUSTED: Final = "standing-clock-trusted"
"""A client manager whose clock stood still passes on what lay in its sockets: no heartbeat tells it so."""

NONE: Final[frozenset[str]] = frozenset()
ALL: Final = (
    ACKNOWLEDGE_BEFORE_FSYNC,
    RELEASE_BY_EARLIER_SYNC,
    DEDUP_OFF,
    FIFO_OFF,
    SEAL_QUANTITY_ONE,
    NO_FENCE,
    ADOPT_LONGEST,
    NO_RESUBMIT,
    RAISE_COMMITTED_FROM_ANY_EPOCH,
    KEEP_OWN_SUFFIX,
    OWN_REPORT_NOT_REQUIRED,
    CONFIG_BEFORE_COMMIT,
    TWO_CHANGES_AT_ONCE,
    VOTE_AFTER_DAMAGE,
    NEGATIVE_AFTER_DAMAGE,
    GARBAGE_BEFORE_STABLE,
    NEVER_REREPORT,
    DELIVER_BEFORE_DURABLE,
    REFRESH_TS,
    EXCEPTIONS_OF_OTHERS_KEPT,
    HEARD_IS_DOUBTED,
    HELD_SPACE_IGNORED,
)
"""Those of the bus."""

OF_CLUSTER: Final = (
    HELD_RANGES_IGNORED,
    LOWER_GENERATION_ACCEPTED,
    ACKNOWLEDGED_TWICE,
    OLD_TERM_ACCEPTED,
    FLOOR_IGNORED,
    STANDING_CLOCK_TRUSTED,
    CREDIT_KEPT,
    COUNT_STUCK,
    RETURNED_LAST,
    REFERENCES_IGNORED,
    DEAD_KEEP_SEGMENTS,
    MISREAD_PUTS_ASIDE,
    LOSS_NOT_TOLD,
    LOSS_FORGOTTEN,
    WALL_CLOCK_BELIEVED,
    AGED_ONE_TOO_MANY,
    SHED_ONE_TOO_MANY,
    LATE_WORD_DETACHES,
    EXPIRED_THOUGH_RESUMED,
)
"""Those of message managers and client managers, which clients can see."""

OF_TRANSACTIONS: Final = (
    PARTICIPANT_DECIDES_ALONE,
    CHECKPOINT_FORGETS_TRANSACTIONS,
    DECISION_NOT_ORDERED,
    OPEN_SURVIVES_FENCE,
    DECISION_ENDS_WITH_SESSION,
)
"""Those of transactions, found by whoever counts what transfers between accounts leave behind."""

OF_HOLDS: Final = (HOLD_BEGUN_ANEW, OUTDATED_HOLD_TAKEN, RESTORE_FORGETS_LOCKS)
"""Those of holds, found by whoever remembers what there was to read."""
