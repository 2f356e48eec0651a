"""ClientManagerSettings: the limits above which a client manager makes clients wait, or refuses."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.buffer import FRAME_BYTES_MAX
from antiphon.wire.destination_frames import NAMES_MAX

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
    """Sessions of all connections, and of lost ones that are still being finished."""

    consumers_max: int = 1_000
    """Consumers of one session."""

    connection_consumers_max: int = 2_000
    """Consumers of one connection: when it is lost, all of them are detached in one step."""

    consumers_total_max: int = 100_000
    """Consumers of all connections."""

    requests_max: int = 4_096
    """Requests of one connection that still wait for their answer: all its consumers, and then some."""

    names_max: int = 8 * NAMES_MAX
    """Destinations of one connection that are being made in bulk."""

    question_length_max: int = 64 * KIB
    """Characters of one question to the node."""

    answer_length_max: int = 2 * MIB
    """Characters of one answer: most have one byte, and a frame holds little more."""

    questions_max: int = 16
    """Questions of one connection that wait for their answer: a short one may have a long answer."""

    directory_wait_ms: int = 5_000
    """How long a channel may take to look up a name, or to make a destination, until the request is
    refused."""

    lookup_repeat_ms: int = 200
    """The interval at which a question to a channel is asked again."""

    primary_wait_ms: int = 1_000
    """How long only the primary is asked: about as long as a change of primary takes."""

    range_repeat_ms: int = 1_000
    """The interval after which another replica is asked for a page of a range, or a question about one."""

    range_wait_ms: int = 8_000
    """How long the replicas of a channel may take together, until the request is refused."""

    range_question_length_max: int = 1 * MIB
    """Characters of one question about ranges: it may name very many destinations."""

    range_destinations_max: int = 65_536
    """Destinations of one page of a range."""

    range_page_bytes_max: int = 2 * MIB
    """Bytes of a page, unless a single batch has more. A frame takes a little more."""

    range_pages_max: int = 4
    """Pages of ranges on their way to one connection."""

    range_asks_max: int = 64
    """Questions about ranges of one connection that are on their way; others wait in line."""

    range_ask_wait_ms_max: int = 30_000
    """How long a client may have a question wait for news."""

    placements_kept: int = 100_000
    """Names of destinations whose channel is remembered without their having been used here; and as many
    with their ids that were: half a kilobyte a name for both. A forgotten name is asked for anew."""

    prepare_wait_ms: int = 5_000
    """How long the channels of a transaction may take to promise a commit, until it is rolled back."""

    finish_wait_ms: int = 1_000
    """How long a client waits for the channels to carry out a decision, until it is told."""

    transactions_max: int = 8
    """Commits of one session that some channel has not carried out yet."""

    window_bytes: int = 4 * MIB
    """Published but not yet confirmed, for each session and channel. A client is told, and keeps to it."""

    command_weight: int = 512
    """The bytes kept of a command besides its own, about; they count in the two limits that follow."""

    connection_bytes_max: int = 16 * MIB
    """Unconfirmed commands of one connection above which the client manager stops reading from it."""

    total_bytes_max: int = 256 * MIB
    """Unconfirmed commands of all clients above which it stops reading from every client that sends more."""

    envelope_bytes: int = 512 * KIB
    """A quarter of `submitted_bytes_max`: one envelope is gathered while others are being written."""

    envelope_bytes_max: int = 2 * MIB
    """A single command may be larger than `envelope_bytes`; then it travels alone, up to this."""

    envelope_count_max: int = 65_536

    envelope_commands_max: int = 4_096
    """Commands of one envelope, and, below, of all that are not yet confirmed: a quarter and a half of the
    outcomes that a channel keeps. If all fail, the outcomes must be heard before they are forgotten. A
    command counts as many times as it may have outcomes."""

    unconfirmed_commands_max: int = 8_192

    submitted_bytes_max: int = 2 * MIB
    """Submitted to a channel and not yet committed. Later commands wait, so that they are gathered. As much
    as a producer of the bus may have under way: with half of it, a third of two cores was idle."""

    turn_bytes: int = 64 * KIB
    """The bytes that one session may add to an envelope before the next one's turn."""

    crowd_min: int = 4
    """Commands confirmed together whose clients are expected to send again together; fewer leave on their
    own."""

    crowd_wait_ms: int = 5
    """How long the first of a crowd wait for the others at most."""

    request_interval_ms: int = 200
    """The interval at which an unanswered request to a primary is sent again."""

    detached_review_ms: int = 300_000
    """How often a session whose client is gone is asked about, to learn whether it has expired."""

    attachment_check_ms: int = 1_000
    """How often a primary is asked whether it still knows this node, when there is nothing else to send."""

    sure_ms: int = 0
    """For how long a primary's answer holds that its deliveries are still this node's, see
    `GroupConfig.sure_ms`. The primary is asked four times as often. 0: for ever, as the primary is in this
    process."""

    client_sure_ms: int = 125
    """For how long this node's answer holds for a client, likewise."""

    acknowledge_delay_ms: int = 20
    """How long a primary may wait to hear that a delivery came. Each acknowledgement costs it a step, and it
    needs one only to know what may follow: far below its `stream_probe_ms`."""

    acknowledge_bytes: int = 256 * KIB
    """The bytes that may be received and not acknowledged: far below a `stream_window_bytes`."""

    missing_delay_ms: int = 20
    """How long a gap in a primary's stream may be a matter of order: then it is named."""

    missing_interval_ms: int = 100
    """The interval at which a gap is named again."""

    early_bytes_max: int = 8 * MIB
    """The bytes of a channel's early deliveries that are kept. The rest is sent again."""
