"""ChannelParts: the machines of one channel on one node, and the events that wait for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.bus import effects as bus
from antiphon.bus.listener import Listener
from antiphon.bus.producer import BusProducer
from antiphon.bus.replica import Replica
from antiphon.message_manager.manager import MessageManager


@dataclass(slots=True)
class ChannelParts:
    """The machines of one channel on this node, with the events that wait for them.

    A node without a replica has a listener; a node that keeps no messages has no message manager.
    """

    name: str
    producer: BusProducer
    replica: Replica | None = None
    manager: MessageManager | None = None
    listener: Listener | None = None
    for_replica: list[bus.Event] = field(default_factory=list)
    for_producer: list[bus.Event] = field(default_factory=list)
    for_listener: list[bus.Event] = field(default_factory=list)
    manager_heard: bool = False
    proposals: int = 0
    # Has the channel no other node? Messages of before a configuration go to the nodes of the former one.
    is_alone: bool = field(init=False)
    # Room on the disk is low: nothing more is published for now.
    is_blocked: bool = False
    # The deadline of each machine after its last step; None if it has none, or is not here.
    replica_at: int | None = field(init=False, default=None)
    producer_at: int | None = field(init=False, default=None)
    manager_at: int | None = field(init=False, default=None)
    listener_at: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        assert (self.replica is None) != (self.listener is None), "a channel is kept, or listened to"
        self.is_alone = len(self.producer.config.nodes) == 1
        self.producer_at = self.producer.next_deadline_ns()
        if self.replica is not None:
            self.replica_at = self.replica.next_deadline_ns()
        if self.manager is not None:
            self.manager_at = self.manager.next_deadline_ns()
        if self.listener is not None:
            self.listener_at = self.listener.next_deadline_ns()

    @property
    def primary(self) -> int:
        """The node that serves the channel, as far as is known here; 0 for none."""
        return self.replica.primary if self.replica is not None else self._listener.primary

    @property
    def is_ready(self) -> bool:
        """Is the channel served here, or followed, or known to be served elsewhere?"""
        if self.replica is None:
            return self._listener.primary != 0
        return self.replica.is_serving or self.replica.is_synchronized

    @property
    def _listener(self) -> Listener:
        assert self.listener is not None, "a channel without a replica is listened to"
        return self.listener

    @property
    def kept(self) -> MessageManager:
        """The message manager of a node that keeps messages."""
        assert self.manager is not None, "this node keeps no messages"
        return self.manager

    def reader(self, node: int, attempt: int) -> int:
        """The node to ask for reading: this one if it can, else one after the other. 0: there is none."""
        if self.manager is not None:
            return node
        readers = self._listener.readers()
        return readers[attempt % len(readers)] if readers else 0
