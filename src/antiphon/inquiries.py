"""Inquiries: a client's question about the whole system, put to all of its nodes.

INQ1  Nodes are asked directly, nothing is ordered, and no answer is waited for longer than a second. Nodes
      that gave no answer are named.
INQ2  Of several replicas' answers the primary's counts; without one, that of the replica that is farthest. Of
      two that take themselves for the primary, the one with the higher epoch is.
INQ3  However many clients ask the same at once, the nodes are asked once.
INQ4  An answer is bounded: destinations are listed page by page, channel after channel.
INQ5  A channel serves if the node whose answer counts leads it, has a majority behind it and has applied its
      own claim. A copy is a message manager that answers and is synchronized; a channel with fewer copies
      than replicas is degraded. A channel without any answer is listed, too.

`standing` answers for one node. A node that is alone needs no inquiry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from antiphon.bus.messages import About, Query, Reply
from antiphon.retries import Retries

WAIT_MS: Final = 1_000
REPEAT_MS: Final = 300
_NS_PER_MS: Final = 1_000_000

MESSAGE_MANAGER: Final = "message-manager"

STATUS: Final = "status"
DESTINATIONS: Final = "destinations"
DIGESTS: Final = "digests"
KEPT: Final = "kept"

# The keys of a node's answer. Digests are a list without any.
_KEYS: Final = {
    STATUS: {"cluster", "nodes", "channels", "destinations", "connections", "config_digest"},
    DESTINATIONS: {"channels", "rows", "through", "more"},
}


class Question(NamedTuple):
    """A client's question; of destinations, those of a channel with ids above `after`."""

    name: str
    channel: str = ""
    after: int = 0

    @property
    def to_nodes(self) -> str:
        if self.name != DESTINATIONS:
            return json.dumps({"question": self.name})
        return json.dumps({"question": KEPT, "channel": self.channel, "after": self.after})


def read_question(text: str, channels: Iterable[str]) -> Question | None:
    """A question that concerns more than one node; None for any other."""
    try:
        asked = json.loads(text)
        name = asked["question"]
        if name in (STATUS, DIGESTS):
            return Question(name)
        question = Question(name, str(asked.get("channel") or min(channels)), int(asked.get("after", 0)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return question if name == DESTINATIONS and question.channel in channels else None


class NodeRef(NamedTuple):
    """A node in the configuration of the cluster; a node without a channel takes part in all."""

    name: str
    number: int
    role: str
    channel: str | None = None
    rank: int | None = None


class Asker(NamedTuple):
    conn: int
    request: int


class Put(NamedTuple):
    """Put this question to a node, over a channel that it takes part in."""

    channel: str
    to: int
    question: Query


class Told(NamedTuple):
    asker: Asker
    answer: str


Step = tuple[list[Put], list[Told]]


class _Inquiry:
    __slots__ = ("answers", "askers", "attempts", "members", "number", "question")

    def __init__(self, number: int, question: Question, members: Sequence[NodeRef]) -> None:
        self.number = number
        self.question = question
        self.members = members
        self.askers: list[Asker] = []
        self.answers: dict[int, Any] = {}  # by node number
        self.attempts = 0

    @property
    def silent(self) -> list[NodeRef]:
        return [member for member in self.members if member.number not in self.answers]


class Inquiries:
    """The inquiries of one node. `is_silent` says whether a node has not been heard of for long."""

    def __init__(
        self,
        own: int,
        members: Iterable[NodeRef],
        channels: Iterable[str],
        is_silent: Callable[[int], bool],
    ) -> None:
        self._own = own
        self._members = tuple(members)
        self._channels = tuple(channels)
        self._is_silent = is_silent
        self._by_question: Retries[Question, _Inquiry] = Retries()
        self._numbers = 0

    def concerns_all(self, text: str) -> Question | None:
        return read_question(text, self._channels) if len(self._members) > 1 else None

    def ask(self, now_ns: int, asker: Asker, question: Question, tell: Callable[[str], str | None]) -> Step:
        """Take a client's question; `tell` gives this node's own answer to it."""
        inquiry = self._by_question.get(question)
        if inquiry is not None:
            inquiry.askers.append(asker)
            return [], []
        self._numbers += 1
        members = [one for one in self._members if _concerns(question, one)]
        inquiry = _Inquiry(self._numbers, question, members)
        self._by_question.put(question, inquiry, REPEAT_MS * _NS_PER_MS, wait_ns=WAIT_MS * _NS_PER_MS)
        self._by_question.arm(now_ns)
        inquiry.askers.append(asker)
        own = _read(tell(question.to_nodes) or "", question)
        if own is not None and any(member.number == self._own for member in members):
            inquiry.answers[self._own] = own
        return self._put(inquiry), self._conclude(inquiry)

    def _put(self, inquiry: _Inquiry) -> list[Put]:
        ask = Query(inquiry.number, About.NODE, inquiry.question.to_nodes)
        # A node that takes part in all channels is asked over another one each time.
        any_channel = self._channels[inquiry.attempts % len(self._channels)]
        return [Put(member.channel or any_channel, member.number, ask) for member in inquiry.silent]

    def answered(self, sender: int, message: Reply) -> list[Told]:
        """Take a node's answer; a malformed one does not count."""
        for _, inquiry in self._by_question.items():
            if inquiry.number == message.request and sender not in inquiry.answers:
                answer = _read(message.answer, inquiry.question)
                if answer is not None:
                    inquiry.answers[sender] = answer
                return self._conclude(inquiry)
        return []

    def next_deadline_ns(self) -> int | None:
        return self._by_question.next_deadline_ns()

    def keep_time(self, now_ns: int) -> Step:
        """Repeat the questions to silent nodes, and conclude those whose time is over (INQ1)."""
        puts: list[Put] = []
        told: list[Told] = []
        for _, inquiry, is_over in self._by_question.due(now_ns):
            if is_over:
                told += self._conclude(inquiry, is_over=True)
            else:
                inquiry.attempts += 1
                puts += self._put(inquiry)
        return puts, told

    def _conclude(self, inquiry: _Inquiry, *, is_over: bool = False) -> list[Told]:
        if inquiry.silent and not is_over:
            return []
        self._by_question.forget(inquiry.question)
        if inquiry.question.name == STATUS:
            states = {
                one.number: "down" if self._is_silent(one.number) else "suspect" for one in inquiry.silent
            }
            answer: Any = merge_status(inquiry.members, inquiry.answers, states)
        elif inquiry.question.name == DESTINATIONS:
            voice = _voices(inquiry.members, inquiry.answers).get(inquiry.question.channel)
            answer = page_of(inquiry.question, voice, self._channels)
        else:
            answer = [row for one in inquiry.members for row in inquiry.answers.get(one.number, ())]
        text = json.dumps(answer)
        return [Told(asker, text) for asker in inquiry.askers]


def _concerns(question: Question, member: NodeRef) -> bool:
    """Only message managers keep anything."""
    if question.name == STATUS:
        return True
    return member.role == MESSAGE_MANAGER and question.channel in ("", member.channel)


def _read(text: str, question: Question) -> Any:
    """A node's answer; None if it is malformed."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if question.name == DIGESTS:
        return answer if isinstance(answer, list) else None
    return answer if isinstance(answer, dict) and answer.keys() >= _KEYS[question.name] else None


# -- putting answers together ------------------------------------------------------------


def merge_status(
    members: Sequence[NodeRef], answers: Mapping[int, dict[str, Any]], states: Mapping[int, str]
) -> dict[str, Any]:
    """The status of the system from the answers of its nodes; `states` are those of the silent ones."""
    nodes: list[dict[str, Any]] = []
    for member in members:
        said = answers.get(member.number)
        if said is None:
            name, number, role, channel, rank = member
            nodes.append(row_without_order(name, role, channel, rank, states[number]))
        else:
            nodes += said["nodes"]
    voices = _voices(members, answers)
    rows = []
    for name in sorted({member.channel for member in members if member.channel is not None}):
        row = voices[name]["channels"][0] if name in voices else _silent_channel(name, members)
        rows.append(_counted(row, nodes))
    primaries = {row["primary"] for row in rows}
    for node in nodes:
        node["is_primary"] = node["is_primary"] and node["name"] in primaries
    first = next(iter(answers.values()), {})
    return {
        "cluster": first.get("cluster"),
        "nodes": nodes,
        "channels": rows,
        "destinations": sum(voice["destinations"] for voice in voices.values()),
        "connections": sum(said["connections"] for said in answers.values()),
        "config_digest": first.get("config_digest"),
        "silent": [member.name for member in members if member.number not in answers],
    }


def _counted(channel: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a channel with the number of its copies (INQ5)."""
    copies = sum(
        1
        for node in nodes
        if node["channel"] == channel["name"] and node["role"] == MESSAGE_MANAGER and node["synchronized"]
    )
    is_serving = bool(channel["serving"])
    is_degraded = channel["degraded"] or copies < channel["replicas"]
    return {**channel, "copies": copies, "serving": is_serving, "degraded": is_degraded or not is_serving}


def _silent_channel(name: str, members: Iterable[NodeRef]) -> dict[str, Any]:
    replicas = sum(1 for one in members if one.channel == name and one.role == MESSAGE_MANAGER)
    return {
        "name": name,
        "epoch": None,
        "committed": None,
        "primary": None,
        "replicas": replicas,
        "copies": 0,
        "serving": False,
        "degraded": True,
        "checkpoint": None,
        "transactions": {},
        "clock_difference_ms": None,
    }


def _voices(members: Sequence[NodeRef], answers: Mapping[int, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The answer that counts of each channel (INQ2), by the channel's name."""
    best: dict[str, tuple[tuple[int, bool, int], dict[str, Any]]] = {}
    for member in members:
        said = answers.get(member.number)
        if said is None or member.role != MESSAGE_MANAGER or not said["channels"]:
            continue
        row = said["channels"][0]
        # A deposed primary may not know it yet: the higher epoch is the newer one.
        weight = (row["epoch"], row["primary"] is not None, row["committed"])
        name = row["name"]
        if name not in best or weight > best[name][0]:
            best[name] = (weight, said)
    return {name: best[name][1] for name in sorted(best)}


def row_without_order(
    name: str, role: str, channel: str | None, rank: int | None, state: str
) -> dict[str, Any]:
    """The row of a node that has no part in an order, or does not answer."""
    return {
        "name": name,
        "role": role,
        "channel": channel,
        "rank": rank,
        "state": state,
        "is_primary": False,
        "is_sequencer": False,
        "synchronized": None,
        "epoch": None,
        "committed": None,
        "applied": None,
        "lag": None,
    }


def page_of(question: Question, kept: Mapping[str, Any] | None, channels: Iterable[str]) -> dict[str, Any]:
    """A page of destinations, from the replica whose answer counts, and where the next one begins (INQ4)."""
    following = None
    if kept is not None and kept["more"]:
        following = {"channel": question.channel, "after": kept["through"]}
    else:
        later = [channel for channel in channels if channel > question.channel]
        if later:
            following = {"channel": min(later), "after": 0}
    return {"rows": [] if kept is None else kept["rows"], "next": following}
