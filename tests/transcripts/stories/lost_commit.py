"""Lost control messages are repaired

Submits, acknowledgements and commits may be lost like anything else. The sequencer sends a submit again
to a commit server that does not acknowledge it; acknowledgements are cumulative, so a later one says what
an earlier one would have said; and whoever missed a COMMIT hears from the next heartbeat that there was one.
"""

from antiphon.bus import messages as m
from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say("The COMMIT does not reach C.")
    stage.lose("A", "C", m.Commit)
    stage.publish("B", "one")
    stage.settle()
    stage.say("C learns from a heartbeat that more is committed than it knows, and asks a commit server.")
    stage.wait_applied("C", 4)
    stage.say(
        """The submit does not reach C. Two others have it, so it is committed; C learns the entry as
        committed, but its own log lacks it, until A sends the submit again."""
    )
    stage.lose("A", "C", m.CommitSubmit)
    stage.publish("B", "two")
    stage.settle()
    stage.look()
    stage.say("Time passes.")
    stage.wait(lambda: stage["C"].replica.last == 5)
    stage.say(
        """Both acknowledgements are lost: nothing is committed, though all three logs hold it. The
        submit is repeated, and the answer with it."""
    )
    stage.lose("B", "A", m.CommitAcknowledge)
    stage.lose("C", "A", m.CommitAcknowledge)
    stage.publish("B", "three")
    stage.settle()
    stage.say("Time passes.")
    stage.wait_confirmed("three")
