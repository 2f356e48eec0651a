"""Lost data is repaired

An envelope goes to all data servers; when two of three hold it, it can be committed. Whoever did not get it
learns its number all the same, and then fetches it. Only the sequencer numbers nothing that it does not hold
itself: otherwise the primary might have to serve what only others have.
"""

from antiphon.bus import messages as m
from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say(
        """The envelope does not reach C. It is committed without C, and C waits for the payload. C's log
        takes the number only when A has called it committed: an acknowledgement before would speak for an
        envelope that C lacks."""
    )
    stage.lose("B", "C", m.Data)
    stage.publish("B", "hello")
    stage.settle()
    stage.say("After a short delay, in which most gaps close by themselves, C asks a data server.")
    stage.wait_applied("C", 4)
    stage.say(
        """Now the envelope reaches neither A, the sequencer, nor B's own disk before B dies. C alone holds
        it. A will not number what it does not hold itself, so it fetches it from whoever reported it."""
    )
    stage.stall("B")
    stage.lose("B", "A", m.Data)
    stage.publish("B", "orphan")
    stage.settle()
    stage.crash("B")
    stage.say("Time passes.")
    stage.wait_applied("C", 5)
    stage.look()
