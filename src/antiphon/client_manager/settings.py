"""How much a client manager takes in before it says wait, or no."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.buffer import FRAME_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB

LIMIT = "limit"
"""The code of a refusal because of one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientManagerSettings:
    """Limits of one client manager; the defaults suit one machine."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    heartbeat_ms: int = 10_000

    user_bytes_max: int = 255
    """Of a user's name and of a client id: both are kept with every session."""

    sessions_max: int = 1_000
    """Sessions of one connection."""

    sessions_total_max: int = 50_000
    """Sessions of all connections, and of those that have gone and are still being finished."""

    consumers_max: int = 1_000
    """Consumers of one session."""

    connection_consumers_max: int = 2_000
    """Consumers of one connection: when it is lost, all of them are detached in one step."""

    consumers_total_max: int = 100_000
    """Consumers of all connections."""

    requests_max: int = 4_096
    """Requests of one connection that still wait for their answer: all its consumers, and then some."""

    question_length_max: int = 64 * KIB
    """Characters of one question to the node."""

    answer_length_max: int = 2 * MIB
    """Characters of one answer: most have one byte, and a frame holds little more."""

    questions_max: int = 16
    """Questions of one connection that wait for their answer: a short one may have a long answer."""

    directory_wait_ms: int = 5_000
    """How long a channel may take to say what it knows of a name, or to make a destination, until whoever
    waits for it is told that it does not."""

    lookup_repeat_ms: int = 200
    """After which a question to a channel is asked again."""

    primary_wait_ms: int = 1_000
    """How long only the primary is asked: about as long as it takes to have another."""

    range_repeat_ms: int = 1_000
    """After which another replica is asked for a page of a range, or a question about one."""

    range_wait_ms: int = 8_000
    """How long the replicas of a channel may take together, until a client is told that none answers."""

    range_question_length_max: int = 1 * MIB
    """Characters of one question about ranges: it may name very many destinations."""

    range_destinations_max: int = 65_536
    """Destinations of one page of a range."""

    range_page_bytes_max: int = 2 * MIB
    """Bytes of a page, unless a single batch has more. A frame takes a little more."""

    range_pages_max: int = 4
    """Pages of ranges on their way to one connection."""

    range_asks_max: int = 64
    """Questions about ranges of one connection that are on their way; longer ones wait in line."""

    range_ask_wait_ms_max: int = 30_000
    """How long a client may have a question wait for news."""

    placements_kept: int = 100_000
    """Names of destinations whose channel is remembered without their having been used here."""

    prepare_wait_ms: int = 5_000
    """How long the channels of a transaction may take to promise that it can be committed, until it is
    rolled back."""

    finish_wait_ms: int = 1_000
    """How long a client waits for the channels to carry out what was decided, until it is told."""

    transactions_max: int = 8
    """Commits of one session that some channel has not carried out yet."""

    window_bytes: int = 4 * MIB
    """Published but not yet confirmed, for each session and channel. A client is told, and keeps to it."""

    command_weight: int = 512
    """What is kept of a command besides its bytes, about; it counts in the two limits that follow."""

    connection_bytes_max: int = 16 * MIB
    """Unconfirmed commands of one connection above which we stop reading from it."""

    total_bytes_max: int = 256 * MIB
    """Unconfirmed commands of all clients above which we stop reading from whoever sends more."""

    envelope_bytes: int = 512 * KIB
    """A quarter of `submitted_bytes_max`: one envelope is gathered while others are being written."""

    envelope_bytes_max: int = 2 * MIB
    """A single command may be larger than `envelope_bytes`; then it travels alone, up to this."""

    envelope_count_max: int = 65_536

    envelope_commands_max: int = 4_096
    """Commands of one envelope, and, below, of all that are not yet confirmed: a quarter and a half of the
    outcomes that a channel keeps. If all fail, what became of them must be heard before it is forgotten."""

    unconfirmed_commands_max: int = 8_192

    submitted_bytes_max: int = 2 * MIB
    """Submitted to a channel and not yet committed. What comes later waits, so that it is gathered. As much
    as a producer of the bus may have under way: with half of it, a third of two cores was idle."""

    turn_bytes: int = 64 * KIB
    """What one session may add to an envelope before it is the next one's turn."""

    request_interval_ms: int = 200
    """What a primary has not answered is said again after this."""

    detached_review_ms: int = 300_000
    """How often a session whose client is gone is asked about, to learn whether it has expired."""

    attachment_check_ms: int = 1_000
    """How often a primary is asked whether it still knows us, when there is nothing else to say to it."""

    sure_ms: int = 0
    """For how long a primary's word holds that what it delivered is still ours, see `GroupConfig.sure_ms`. It
    is asked four times as often. 0: for ever, as the primary is in this process."""

    client_sure_ms: int = 125
    """For how long a word of ours holds for a client, likewise."""

    acknowledge_delay_ms: int = 20
    """How long a primary may wait to hear that a delivery came. Each word about that costs it a step, and it
    needs one only to know what may follow: far below its `stream_probe_ms`."""

    acknowledge_bytes: int = 256 * KIB
    """What may have come and not be acknowledged, whatever the time: far below a `stream_window_bytes`."""

    missing_delay_ms: int = 20
    """How long a gap in what a primary delivers may be a matter of order: then it is named."""

    missing_interval_ms: int = 100
    """A gap that was named is named again after this."""

    early_bytes_max: int = 8 * MIB
    """What may be kept of a channel's deliveries that came before others. The rest is sent again."""
