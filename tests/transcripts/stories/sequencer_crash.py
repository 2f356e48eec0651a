"""The sequencer crashes, two entries are half done

A has numbered two envelopes. Of the first, the number is durable at A and B: that is a quorum, it is
committed, though nobody knows. Of the second, the number is on A's disk alone. A crashes. The new sequencer
must complete the first and may give the second another number; it cannot ask A.
"""

from antiphon.bus import messages as m
from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B", "C")
    stage.say(
        """"kept" is numbered 6. The submit does not reach C, and B's acknowledgement does not reach A: A
        does not know that 6 is committed."""
    )
    stage.lose("A", "C", m.CommitSubmit, times=2)
    stage.lose("B", "A", m.CommitAcknowledge)
    stage.publish("B", "kept")
    stage.settle()
    stage.say('"moved" is numbered 7, and that submit reaches nobody but A itself.')
    stage.lose("A", "B", m.CommitSubmit)
    stage.publish("C", "moved")
    stage.settle()
    stage.crash("A")
    stage.look()
    stage.say(
        """B misses the heartbeats first. C promises and tells where its log stands. Of the two logs, both
        of epoch 1.A, B's own reaches further: it is adopted. "kept" is written again under the new epoch, as
        6, and is committed when B and C both hold it there. The data servers report to the new sequencer
        what has no committed number: "moved" becomes 8, behind the entry by which B became primary. C sends
        "moved" again as well, for A might have been the only node that had it."""
    )
    stage.wait_confirmed("kept", "moved")
    stage.look()
