"""The patterns workload: subscriptions by patterns, while topics are made and deleted, and nodes fail.

The clients of topics of the cluster workload are others here: topic makers, and subscribers of patterns, some
of which overlap. Everything else, also the faults, is as there. In the end every subscription that is left
must have got every message of the topics that match its pattern, from the first one on.
"""

from __future__ import annotations

from antiphon.names import family_name
from antiphon.sim.checkers.families import FamilyTopics
from antiphon.sim.clients.process import ClientProcess
from antiphon.sim.clients.queues import RudeSubscriber
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.clients.sharers import sharers
from antiphon.sim.clients.topic_makers import RudeTopicMaker
from antiphon.sim.cluster.profile import ClusterProfile
from antiphon.sim.workloads.cluster import ClusterRun

_PATTERNS = ("topic:t*", "topic:t0.*", "topic:*.1", "topic:t?.?", "topic:no*")
_SESSION_EXPIRY_SHORT_MS = 1_000


class PatternRun(ClusterRun):
    profiles = ()
    model = FamilyTopics

    def adjust(self, profile: ClusterProfile) -> None:
        profile.topics = self._chance.choice((1, 2, 3))
        profile.subscribers = self._chance.choice((1, 2, 3))
        # A topic that is read may be gone.
        profile.clients.look_probability = 0.0
        # Whether topics have messages before they are decided.
        profile.node.sizes["match_pause_ms"] = self._chance.choice((0, 5, 50, 200))
        self._topics_each = self._chance.choice((1, 3, 6))
        self._deletes = self._chance.choice((0.0, 0.3, 1.0))

    def _of_topics(self) -> list[ClientProcess]:
        profile, clients = self.profile, list[ClientProcess]()
        for number in range(profile.topics):
            client = RudeClient(f"maker{number}", self._hall, profile.clients)
            RudeTopicMaker(
                client,
                f"t{number}",
                profile.messages,
                self._settings(number),
                topics=self._topics_each,
                deletes=self._deletes,
            )
            clients.append(client)
        for at in range(profile.subscribers):
            client = RudeClient(f"subscriber{at}", self._hall, profile.clients)
            is_passing = profile.node.session_expiry_ms < _SESSION_EXPIRY_SHORT_MS and at % 2 == 1
            name = "" if is_passing else f"audit{at}"
            RudeSubscriber(client, family_name("glob", self._chance.choice(_PATTERNS)), "", name)
            clients.append(client)
        shared = [(family_name("glob", _PATTERNS[0]), "")]
        return [*clients, *sharers(self._hall, profile.clients, shared, profile.sharing)]
