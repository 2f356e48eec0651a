"""NodeHabits: the settings of a run's nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from antiphon.bus.group import GroupConfig
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.event_log import EventLogSettings
from antiphon.journal.format import Settings as JournalSettings
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state import outcomes
from antiphon.sim.world import MICROSECOND_NS
from antiphon.startup import CHANNEL

EVENTS_SHARE: Final = 0.5
"""The share of runs whose nodes publish their events."""

AnySettings = TypeVar("AnySettings", ClientManagerSettings, MessageManagerSettings)


@dataclass(slots=True)
class NodeHabits:
    """Small buffers and short times, so that much happens in a short run."""

    tick_ns: int = 20 * MICROSECOND_NS
    # Of an embedded node, which has no network: the share of its producer's messages to its data server that
    # are lost, late or repeated, and of messages among its roles that are lost.
    trouble_probability: float = 0.0
    loss_probability: float = 0.0
    rereport_ms: int = 200
    one_round: int = 1
    checkpoint_entries: int = 40
    window_entries: int = 1_024
    envelope_bytes: int = 32 * 1024
    connection_bytes: int = 256 * 1024
    session_expiry_ms: int = 300_000
    registration_wait_ms: int = 300
    log_time_interval_ms: int = 50
    flush_bytes: int = 8 << 20
    # Of transactions: how long a part may be in doubt, and a participant silent or busy.
    in_doubt_ms: int = 2_000
    prepare_wait_ms: int = 5_000
    finish_wait_ms: int = 1_000
    # Drawn waits, lingers and repetition times, as settings of client managers and of primaries.
    door_waits: dict[str, Any] = field(default_factory=dict)
    primary_waits: dict[str, Any] = field(default_factory=dict)
    segment_bytes: int = 160 * 1024
    order_blocks: int = 8
    # Whether nodes publish their events.
    logs_events: bool = False
    # Other settings by their names, as `limits.sizes` draws them.
    sizes: dict[str, int] = field(default_factory=dict)

    def journal(self) -> JournalSettings:
        """Segments that are full after a few syncs."""
        return JournalSettings(segment_bytes=self.segment_bytes, order_blocks=self.order_blocks, spares_max=2)

    def client_manager(self) -> ClientManagerSettings:
        """Envelopes that fit those segments, and few of them under way."""
        # As many commands as outcomes are kept of; see ClientManagerSettings.
        table = outcomes.OUTCOMES_MAX
        settings = ClientManagerSettings(
            envelope_bytes=self.envelope_bytes,
            envelope_bytes_max=48 * 1024,
            submitted_bytes_max=2 * self.envelope_bytes,
            turn_bytes=self.envelope_bytes // 4,
            connection_bytes_max=self.connection_bytes,
            prepare_wait_ms=self.prepare_wait_ms,
            finish_wait_ms=self.finish_wait_ms,
            envelope_commands_max=max(1, table // 4),
            unconfirmed_commands_max=max(1, table // 2),
            **self.door_waits,
        )
        return self._sized(settings)

    def _sized(self, settings: AnySettings) -> AnySettings:
        named = {one.name for one in fields(settings)}
        sizes: dict[str, Any] = {name: size for name, size in self.sizes.items() if name in named}
        return replace(settings, **sizes)

    def message_manager(self) -> MessageManagerSettings:
        """Limits of time that pass within a run."""
        settings = MessageManagerSettings(
            session_expiry_ms=self.session_expiry_ms,
            registration_wait_ms=self.registration_wait_ms,
            log_time_interval_ms=self.log_time_interval_ms,
            flush_bytes_max=self.flush_bytes,
            # As with envelopes: with one message more these commands fit the small segments.
            dead_bytes_max=24 * 1024,
            in_doubt_ms=self.in_doubt_ms,
            in_doubt_again_ms=max(1, self.in_doubt_ms // 4),
            **self.primary_waits,
        )
        return self._sized(settings)

    def events(self) -> EventLogSettings:
        """Batches of events that fit the small segments, and limits that are met."""
        return EventLogSettings(
            is_published=self.logs_events,
            window_ms=500,
            per_code_max=5,
            in_all_max=30,
            gather_ms=20,
            again_ms=100,
            waiting_rows_max=50,
            batch_rows_max=10,
            batch_bytes_max=24 * 1024,
        )

    def group(self, node: int) -> GroupConfig:
        return GroupConfig.of(
            CHANNEL,
            (node,),
            rereport_ms=self.rereport_ms,
            one_round=self.one_round,
            checkpoint_entries=self.checkpoint_entries,
            window_entries=self.window_entries,
        )
