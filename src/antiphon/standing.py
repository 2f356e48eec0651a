"""Standing: a node's answers to questions about itself, in JSON.

A question is a JSON object with a key `question`. Repeated in one step, its answer is made once. `inquiries`
puts the answers of several nodes together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from antiphon.bus.messages import Query, Reply
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.channel_parts import ChannelParts
from antiphon.client_manager.manager import ClientManager
from antiphon.inquiries import page_of, read_question, row_without_order

PAGE_LENGTH_MAX: Final = 1 << 20
"""The most characters of a page of destinations, unless a single one has more."""

ANSWER_LENGTH_MAX: Final = 8 << 20
"""The most characters of an answer to another node; a message of the bus holds about twice as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The settings that must be equal on all nodes of a cluster: a digest, and one of each key."""

    digest: str
    keys: Mapping[str, str] = field(default_factory=dict)


class Standing:
    def __init__(
        self,
        node_id: int,
        name: str,
        role: str,
        cluster: str,
        agreed: Agreed,
        client_manager: ClientManager | None,
        channels: Mapping[str, ChannelParts],
    ) -> None:
        self._node_id = node_id
        self._name = name
        self._role = role
        self._cluster = cluster
        self._agreed = agreed
        self._client_manager = client_manager
        self._channels = channels
        # Whether the cluster has accepted this node, so that other nodes have to agree with it.
        self.is_established = False
        # Whether nothing was ever written to the disk when this node was started.
        self.is_new = False
        self.answers: dict[str, str] = {}
        self._tellers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "status": lambda asked: self.status(),
            "destinations": self._destinations,
            "kept": self._kept,
            "config": lambda asked: self._config(),
            "digests": lambda asked: self.digests(),
        }

    def answer(self, asked: Query) -> Reply:
        """The answer to another node's question; empty if there is none."""
        answer = self.tell(asked.question) or ""
        # No message holds a larger answer. The asker goes on without it.
        return Reply(asked.request, asked.about, answer if len(answer) <= ANSWER_LENGTH_MAX else "")

    def tell(self, text: str) -> str | None:
        """None: a node cannot answer this question."""
        answer = self.answers.get(text)
        if answer is None:
            try:
                asked = json.loads(text)
                tell = self._tellers[asked["question"]]
            except (ValueError, KeyError, TypeError, RecursionError):
                return None
            told = tell(asked)
            if told is None:
                return None
            answer = self.answers[text] = json.dumps(told)
        return answer

    def status(self) -> dict[str, Any]:
        """The node and its channels, as `antiphon admin status` shows them."""
        rows = [(parts, parts.replica) for parts in self._channels.values()]
        kept = [(parts, replica) for parts, replica in rows if replica is not None]
        nodes = [self._replica_row(parts, replica) for parts, replica in kept]
        return {
            "cluster": self._cluster,
            "nodes": nodes or [row_without_order(self._name, self._role, None, None, "up")],
            "channels": [self._channel_row(parts, replica) for parts, replica in kept],
            "destinations": sum(
                parts.manager.destination_count for parts, _ in kept if parts.manager is not None
            ),
            "connections": 0 if self._client_manager is None else self._client_manager.connection_count,
            "config_digest": self._agreed.digest,
        }

    def _destinations(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """A page of the destinations kept here, and where the next one begins."""
        question = read_question(json.dumps(asked), self._channels)
        if question is None:
            return None
        return page_of(question, self._kept(json.loads(question.to_nodes)), self._channels)

    def _kept(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """A page of the destinations of a channel, and the standing of this replica, to compare."""
        parts, through = self._channels.get(str(asked.get("channel"))), asked.get("after")
        if parts is None or parts.manager is None or parts.replica is None or not isinstance(through, int):
            return None
        rows: list[dict[str, Any]] = []
        room, more = PAGE_LENGTH_MAX, False
        for id, row in parts.manager.destinations_after(through):
            room -= len(json.dumps(row))
            if rows and room < 0:
                more = True
                break
            rows.append({**row, "blocked": parts.is_blocked})
            through = id
        channel = self._channel_row(parts, parts.replica)
        return {"channels": [channel], "rows": rows, "through": through, "more": more}

    def digests(self) -> list[dict[str, Any]]:
        """The digest of the state of every channel kept here; equal on replicas that applied the same."""
        return [
            {
                "name": self._name,
                "channel": parts.name,
                "applied": parts.manager.state.applied,
                "digest": parts.manager.state.digest().hex(),
            }
            for parts in self._channels.values()
            if parts.manager is not None
        ]

    def _config(self) -> dict[str, Any]:
        return {
            "digest": self._agreed.digest,
            "keys": dict(self._agreed.keys),
            "is_established": self.is_established,
            "is_new": self.is_new,
        }

    def _replica_row(self, parts: ChannelParts, replica: Replica) -> dict[str, Any]:
        candidates = replica.config.candidates
        return {
            "name": self._name,
            "role": self._role,
            "channel": parts.name,
            "rank": candidates.index(self._node_id) + 1 if self._node_id in candidates else None,
            # A node whose new disk is not listed yet has no vote: no other may count on it.
            "state": "joining" if replica.is_joining or replica.is_amnesiac else "up",
            "is_primary": parts.manager is not None and parts.manager.is_primary,
            "is_sequencer": replica.state is State.LEADING,
            "synchronized": replica.is_serving or replica.is_synchronized,
            "epoch": replica.epoch,
            "committed": replica.committed_upto,
            "applied": replica.applied,
            "lag": replica.committed_upto - replica.applied,
        }

    def _channel_row(self, parts: ChannelParts, replica: Replica) -> dict[str, Any]:
        is_primary = parts.manager is not None and parts.manager.is_primary
        kept = {} if parts.manager is None else parts.manager.status()
        return {
            "name": parts.name,
            "epoch": replica.epoch,
            "committed": replica.committed_upto,
            "primary": self._name if is_primary else None,
            "replicas": len(replica.config.data_servers),
            # This node alone; in a cluster the copies are counted.
            "copies": int(replica.is_serving),
            "serving": replica.is_serving,
            "degraded": replica.is_degraded,
            "checkpoint": replica.stable_checkpoint,
            "transactions": kept.get("transactions", {}),
            # How far log time was ahead of the clock of the primary's machine at the last mark.
            "clock_difference_ms": kept.get("clock_difference_ms"),
        }
