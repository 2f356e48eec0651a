"""Sequencer: one node at a time gives every envelope its numbers in one order.

Where it sits
    data_server  ->  SEQUENCER  ->  commit_server  ->  SEQUENCER  ->  member

What it promises
    SEQ1  A node leads only in an epoch that it claimed durably and that enough commit servers promised.
    SEQ2  A start of the process is a new epoch. Numbers of an earlier epoch are a cache, valid only as far as
          the seal quorum confirms them.
    SEQ3  A sequencer stops numbering when it hears of a higher epoch, when no quorum answers, when its own
          commit server cannot write, and when the configuration that it leads is over.

What it leaves to others
    The commit servers fence: a deposed sequencer that has not heard so can commit nothing. `candidacy` gets
    an epoch started, `reign` numbers.

    FOLLOWER -> PRE -> SEALING -> STARTING -> LEADING;  a higher epoch leads back to FOLLOWER

In PRE a node asks whether any other node still hears a sequencer, so that a node that hears badly does not
depose a good sequencer. A node that is the only commit server stands at once.

A node that has applied far less than another does not stand, and is not encouraged: it would serve late. This
rule is about speed alone, so it ends when nobody led for `leaderless_ms`.
"""

from __future__ import annotations

from enum import Enum

from antiphon.bus import messages as m
from antiphon.bus.candidacy import Candidacy
from antiphon.bus.chance import Chance
from antiphon.bus.commit_server import CommitServer, DurableEpochs
from antiphon.bus.effects import (
    BeatWanted,
    ConfigProposed,
    EnvelopesArrived,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    Synced,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.member import Member
from antiphon.bus.messages import ServerStatus, SpaceState
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.reign import Reign
from antiphon.bus.schema import Machine, not_for
from antiphon.ids import epoch_counter, epoch_node, make_epoch

_PATIENCE_MAX = 16

EPOCHS_PER_CONFIG = 1 << 28
"""The epochs that a configuration has before it uses those of the next one: enough for four years at two
elections a second, and the 48 bits of a counter are enough for a million configurations."""


class State(Enum):
    """The states of a sequencer."""

    FOLLOWER = "follower"
    PRE = "pre"
    SEALING = "sealing"
    STARTING = "starting"
    LEADING = "leading"


class Sequencer:
    """The sequencer of one node for one channel, whether it leads or not."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        epochs: DurableEpochs,
        commit_server: CommitServer,
        member: Member,
        chance: Chance,
        *,
        presence: PresenceKeeper | None = None,
    ) -> None:
        self._config = config
        self._node = node
        self._epochs = epochs
        # Both of this node, and read only.
        self._commit_server = commit_server
        self._member = member
        self._chance = chance
        self.presence = presence
        self._may_stand = node in config.candidates
        self._is_alone = config.commit_servers == (node,)
        # Our reign ended with a new configuration: this node stands in it without waiting or asking.
        self._stands_next = False
        # A node said that our configuration is over: wait to learn it from the order.
        self._is_retired = False
        # The highest epoch this node has heard of.
        self.epoch_seen = max(epochs.promised, epochs.epoch_claimed)
        self._pre_counter = 0
        self._pre_answers: dict[int, bool] = {}
        self._pre_until: int | None = None
        self._suspect_at: int | None = None
        self._patience = 1
        self._led_at = 0
        # Was any sequencer heard in this run, or is this node one?
        self.is_led = False
        self.candidacy: Candidacy | None = None
        # None unless this node leads.
        self.reign: Reign | None = None
        self._space = SpaceState.AMPLE

    @property
    def state(self) -> State:
        if self.reign is not None:
            return State.LEADING
        if self.candidacy is not None:
            return State.STARTING if self.candidacy.is_starting else State.SEALING
        return State.FOLLOWER if self._pre_until is None else State.PRE

    def reconfigure(self, config: GroupConfig) -> None:
        """The channel has another configuration: a reign or candidacy of the former one is over."""
        self._stands_next = self._stands_next or self.reign is not None
        self._config = config
        self._may_stand = self._node in config.candidates
        self._is_alone = config.commit_servers == (self._node,)
        self._is_retired = False
        self.reign = None
        self.candidacy = None
        self._pre_until = None
        self._suspect_at = None

    def next_deadline_ns(self) -> int | None:
        if self.reign is not None:
            return self.reign.next_deadline_ns()
        if self.candidacy is not None:
            return self.candidacy.next_deadline_ns()
        return self._pre_until if self._pre_until is not None else self._suspect_at

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        """Receive events and return effects; the entries numbered in this step leave in one submit."""
        out: list[RoleEffect] = []
        if self._suspect_at is None and self._may_stand:
            # The first step of this run: no sequencer has been heard, so waiting deposes nobody.
            stands_now = self._is_alone or self._stands_next
            self._suspect_at = now_ns if stands_now else self._next_suspicion(now_ns)
            self._led_at = now_ns
        if (self.reign or self.candidacy) and self._commit_server.status is not ServerStatus.OK:
            # Another node leads better than one whose disk cannot be written.
            self._follow(now_ns)
        for event in events:
            if type(event) is Received:
                self._on_received(now_ns, event.sender, event.message, out)
            elif (
                type(event) is Synced
                and self.candidacy is not None
                and event.index >= self.candidacy.claim_index
                and not self.candidacy.has_claimed
            ):
                self.candidacy.on_claim_durable(now_ns, out)
            elif type(event) is EnvelopesArrived:
                if self.reign is not None:
                    self.reign.on_report(now_ns, self._node, event.items, out)
            elif type(event) is SpaceChanged:
                self._note_space(now_ns, event)
            elif type(event) is ConfigProposed and self.reign is not None:
                self.reign.propose_config(now_ns, event.config)
            elif type(event) is BeatWanted and self.reign is not None:
                self.reign.hurry(now_ns)
        self._on_epoch(self._epochs.promised, now_ns)
        self._keep_time(now_ns, out)
        if self.reign is not None:
            self.reign.forget(self._commit_server.log.base)
            self.reign.flush(now_ns, out)
            self.reign.wake(now_ns)
            if self.reign.is_over:
                self._hand_over(now_ns, out)
        return out

    def _note_space(self, now_ns: int, event: SpaceChanged) -> None:
        self._space = SpaceState.TIGHT if event.is_tight else SpaceState(event.is_low)
        if self.reign is not None:
            self.reign.space = self._space
            if event.is_low:
                self.reign.mark_for_space(now_ns)

    def _on_received(self, now_ns: int, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        match message:
            case m.DataReport():
                if self.reign is not None and sender in self._config.data_servers:
                    self.reign.on_report(now_ns, sender, message.items, out)
            case m.CommitAcknowledge(epoch, last, status):
                if sender not in self._config.commit_servers:
                    return
                if status is ServerStatus.OK:
                    self._on_acknowledge(now_ns, sender, epoch, last, out)
                elif self._is_mine(sender, epoch) and self.reign is not None:
                    self.reign.on_no_acknowledgement(sender, status)
            case m.ProducerOpen():
                if self.reign is not None and sender == message.pid and sender in self._config.nodes:
                    self.reign.on_producer_open(message, out)
            case m.Heartbeat() | m.Commit():
                if sender == epoch_node(message.epoch) and sender != self._node:
                    if message.epoch < self.epoch_seen:
                        # This sequencer's epoch is outdated: some nodes follow a higher one.
                        out.append(Send(sender, m.SealNack(self.epoch_seen)))
                    self._on_sequencer_heard(now_ns, message.epoch)
            case m.HeartbeatAck(epoch, nonce, segments):
                if self._is_mine(sender, epoch) and self.reign is not None:
                    self.reign.on_heartbeat_ack(sender, nonce)
                    if segments:
                        self.reign.mark_for_held_space(now_ns, sender, segments)
            case m.CheckpointReport():
                if self.reign is not None and sender in self._config.checkpoint_servers:
                    self.reign.on_checkpoint_report(sender, message, out)
            case _:
                self._on_change(now_ns, sender, message, out)

    def _on_change(self, now_ns: int, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        """Receive the messages of a change of sequencer."""
        candidacy = self.candidacy
        match message:
            case m.PreSealOk(counter):
                if self._pre_until is not None and counter == self._pre_counter:
                    self._on_pre_seal_ok(now_ns, sender, out)
            case m.SealOk(epoch):
                if candidacy is not None and self._is_mine(sender, epoch):
                    if not candidacy.on_seal_ok(sender, message, out):
                        self._give_up(now_ns, candidacy.base_out_of_reach, out)
                    else:
                        self._on_adopted(now_ns, candidacy, out)
            case m.FetchLogReply(epoch):
                if candidacy is not None and self._is_mine(sender, epoch):
                    candidacy.on_log_page(sender, message, out)
                    self._on_adopted(now_ns, candidacy, out)
            case m.StartNeed(epoch):
                if self._is_mine(sender, epoch):
                    if self.reign is not None:
                        self.reign.on_start_need(now_ns, sender, message, out)
                    elif candidacy is not None:
                        candidacy.on_start_need(sender, message, out)
            case m.SealNack(promised, status):
                if sender in self._config.nodes:
                    self._on_epoch(promised, now_ns)
                    if status is ServerStatus.RETIRED and not self._is_retired:
                        self._is_retired = True
                        self._follow(now_ns)
            case _:
                not_for(Machine.SEQUENCER, message)

    def _is_mine(self, sender: int, epoch: int) -> bool:
        """Is this the answer of a commit server to our epoch?"""
        if sender not in self._config.commit_servers:
            return False
        if self.reign is not None:
            return epoch == self.reign.epoch
        return self.candidacy is not None and epoch == self.candidacy.epoch

    def _on_acknowledge(self, now_ns: int, server: int, epoch: int, last: int, out: list[RoleEffect]) -> None:
        if self.reign is not None:
            if epoch == self.reign.epoch:
                self.reign.on_acknowledge(now_ns, server, last, out)
        elif self.candidacy is not None and epoch == self.candidacy.epoch:
            self.candidacy.on_acknowledge(server, last)
            if self.candidacy.is_won:
                self._lead(now_ns, out)

    # -- following ---------------------------------------------------------------------------------

    def _on_sequencer_heard(self, now_ns: int, epoch: int) -> None:
        self._on_epoch(epoch, now_ns)
        self._led_at = now_ns
        self.is_led = True
        self._stands_next = False
        if epoch >= self.epoch_seen and self._may_stand:
            self._pre_until = None
            self._patience = 1
            self._suspect_at = self._next_suspicion(now_ns)

    def _on_epoch(self, epoch: int, now_ns: int) -> None:
        """A node promised or uses this epoch; a higher epoch ends ours."""
        if epoch <= self.epoch_seen:
            return
        self.epoch_seen = epoch
        current = self.reign or self.candidacy
        if current is not None and epoch > current.epoch:
            self._follow(now_ns)

    def _follow(self, now_ns: int) -> None:
        self.reign = None
        self.candidacy = None
        self._pre_until = None
        if self._may_stand:
            self._suspect_at = self._next_suspicion(now_ns)

    def _on_adopted(self, now_ns: int, candidacy: Candidacy, out: list[RoleEffect]) -> None:
        if candidacy.outranked_by:
            self._on_epoch(candidacy.outranked_by, now_ns)
            self._follow(now_ns)
            self._stands_next = True
            self._suspect_at = now_ns
        elif candidacy.is_won:
            self._lead(now_ns, out)

    def _give_up(self, now_ns: int, base: int, out: list[RoleEffect]) -> None:
        """The order begins beyond our log: this node must first have a checkpoint from there."""
        out.append(Send(self._node, m.FetchIdReply((), base, base)))
        self._follow(now_ns)

    def _next_suspicion(self, now_ns: int) -> int:
        config = self._config
        rank = config.candidates.index(self._node)
        spread = self._chance.below(config.suspicion_spread_ms * self._patience * MS)
        return now_ns + (config.suspicion_ms + rank * config.rank_delay_ms) * MS + spread

    # -- standing ----------------------------------------------------------------------------------

    def _keep_time(self, now_ns: int, out: list[RoleEffect]) -> None:
        config = self._config
        if self.reign is not None:
            if now_ns >= self.reign.next_deadline_ns():
                self._beat(now_ns, out)
        elif self.candidacy is not None:
            waited_ns = now_ns - self.candidacy.started_at
            if not self._is_alone and waited_ns > config.suspicion_ms * MS * self._patience:
                # Another candidate may succeed. A slow disk gets more time with every attempt.
                self._patience = min(self._patience * 2, _PATIENCE_MAX)
                self._follow(now_ns)
            elif now_ns >= self.candidacy.next_deadline_ns():
                self.candidacy.resend(now_ns, out)
        elif self._suspect_at is not None and now_ns >= self._suspect_at:
            is_fit = self._commit_server.status is ServerStatus.OK
            if not is_fit or self._had_better_not(now_ns):
                self._pre_until = None
                self._suspect_at = self._next_suspicion(now_ns)
            elif self._is_alone or self._stands_next:
                # No other node can lead: this one is alone, or led the configuration that is over.
                self._stand(now_ns, out)
            elif self._pre_until is None or now_ns >= self._pre_until:
                self._ask_around(now_ns, out)

    def _had_better_not(self, now_ns: int) -> bool:
        """Is another node so far ahead, or in a later configuration, that this node should not lead?

        A node that knows a later configuration may be unable to tell us, or to lead in it. So if nobody led
        for long, this node stands all the same: the CONFIG is in the adopted log, and is committed once more.
        """
        config = self._config
        if self.presence is None or now_ns - self._led_at >= config.leaderless_ms * MS:
            return False
        return self._is_retired or self._member.applied + config.lag_max < self.presence.applied_max

    def _ask_around(self, now_ns: int, out: list[RoleEffect]) -> None:
        self._pre_counter += 1
        self._pre_answers = {}
        self._pre_until = now_ns + self._config.suspicion_ms * MS
        for server in self._config.commit_servers:
            out.append(Send(server, m.PreSeal(self._pre_counter, self._member.applied)))

    def _on_pre_seal_ok(self, now_ns: int, sender: int, out: list[RoleEffect]) -> None:
        if sender in self._config.commit_servers:
            self._pre_answers[sender] = True
            if len(self._pre_answers) >= self._config.seal_quantity:
                self._stand(now_ns, out)

    def _stand(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Claim an epoch above every epoch that was ever seen.

        A node whose disk was replaced has forgotten its claims, which no other node may have heard. But it
        made them in configurations before the one that lists the new disk, and each configuration has epochs
        of its own.
        """
        self._pre_until = None
        self._stands_next = False
        epochs = self._epochs
        highest = max(epochs.promised, epochs.epoch_claimed, self.epoch_seen)
        counter = max(epoch_counter(highest), (self._config.config_id - 1) * EPOCHS_PER_CONFIG) + 1
        epoch = make_epoch(counter, self._node)
        append = epochs.claim(epoch)
        out.append(append)
        self.epoch_seen = epoch
        self.candidacy = Candidacy(self._config, self._node, epoch, append.index, self._commit_server, now_ns)

    # -- leading -----------------------------------------------------------------------------------

    def _lead(self, now_ns: int, out: list[RoleEffect]) -> None:
        candidacy = self.candidacy
        assert candidacy is not None and candidacy.log is not None and candidacy.ledger is not None, (
            "nothing was adopted"
        )
        self.candidacy = None
        self._patience = 1
        self.is_led = True
        self.reign = Reign(
            self._config,
            self._node,
            candidacy.epoch,
            candidacy.log,
            candidacy.ledger,
            candidacy.match,
            now_ns,
            self._chance,
            self.presence,
            adopted_epoch=candidacy.log_epoch,
        )
        self.reign.space = self._space
        self.reign.tell_committed(candidacy.newly_committed, out)
        if not self.reign.is_over:
            self.reign.claim()
        self._beat(now_ns, out)

    def _hand_over(self, now_ns: int, out: list[RoleEffect]) -> None:
        """The CONFIG is committed. One more heartbeat tells the commit servers so; then this node stops
        leading.
        """
        self._beat(now_ns, out)
        self._stands_next = True
        self._follow(now_ns)

    def _beat(self, now_ns: int, out: list[RoleEffect]) -> None:
        assert self.reign is not None, "only a sequencer that leads has a heartbeat"
        member = self._member
        if self._commit_server.has_nothing_to_give:
            # Without traffic there might be no mark for long, and a joiner would wait for a checkpoint.
            self.reign.mark_for_space(now_ns)
        if not self.reign.beat(now_ns, member.applied, member.term == self.reign.epoch, out):
            self._follow(now_ns)
