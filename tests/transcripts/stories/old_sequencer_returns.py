"""The old sequencer returns

A leads and its process stands still, with a submit on the way. B is elected meanwhile. When A runs again
it still believes that it leads; the commit servers do not take anything from it any more. Nobody relies on A
noticing in time.
"""

from antiphon.bus import messages as m
from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("C")
    stage.say("A numbers an envelope, its submits are held back by the network, and A stands still.")
    stage.hold("A", "B", m.CommitSubmit)
    stage.hold("A", "C", m.CommitSubmit)
    stage.publish("C", "hello")
    stage.settle()
    stage.pause("A")
    stage.look()
    stage.say("B and C elect B. The envelope gets its number from B: 5, where A had said 4.")
    stage.wait_confirmed("hello")
    stage.say(
        """Now the old submits arrive. Both servers have promised a higher epoch: they refuse, and tell
        which."""
    )
    stage.release()
    stage.say(
        """A runs again. It still believes that it leads, and hears otherwise from the first commit server
        that it addresses. It follows. At the next heartbeat of B it says that the new epoch has not begun
        in its log; the log is replaced in one record from the first number that may differ, and A's 4 is
        gone."""
    )
    stage.resume("A")
    stage.wait(lambda: stage["A"].replica.applied == stage["B"].replica.applied)
    stage.look()
    stage.say("B crashes, and A leads again: in a new epoch, for an epoch is never used twice.")
    stage.crash("B")
    stage.publish("C", "second")
    stage.wait_confirmed("second")
    stage.say(
        """B starts again from its disk. It follows; its own numbers are a cache that only a seal quorum
        could confirm."""
    )
    stage.restart("B")
    stage.wait(lambda: stage["B"].replica.applied == stage["A"].replica.applied)
    stage.look()
