"""A network that doubles messages must not double the pages of a log.

1. A new sequencer sent its log to a commit server in pages of one entry. The server answered each page
   with a START_NEED for the next, and each START_NEED was answered with a page.
2. Half of the messages came twice. A page that came twice gave two questions, two questions three, and
   three four or five pages: more than twice as many with each page of the log.
3. A log of ten entries took 170,000 pages, and the run never came to its end.

Found by: antiphon sim bus --seed 273
"""

from __future__ import annotations

from antiphon.sim.bus.profile import BusProfile
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.bus import BusRun


class DoubledRun(BusRun):
    """Pages of one entry, many changes of the sequencer, and half of all messages twice."""

    def adjust(self, profile: BusProfile) -> None:
        profile.shape = "three"
        profile.links.duplicate_probability, profile.links.replay_share = 0.5, 0.0
        profile.mute_probability = 0.1
        profile.settings.update(fetch_entries_max=1, suspicion_ms=100)


def test_doubled_messages_do_not_grow_into_a_storm() -> None:
    for seed in range(1, 21):
        run = DoubledRun(seed, Trace())
        run.run()

        assert run.world.events < 40_000, f"seed {seed}"
