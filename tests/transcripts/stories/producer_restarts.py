"""A producer starts again

Envelopes of one run of a producer are numbered 1, 2, 3, none missing. B sends two; the first is lost on
the way to everybody else, so the second waits for it. B dies. In its next life it opens again, and with
that entry the former run is over: whatever of it has no number by then will never get one. That is a fact
of the order, which everybody reads in the same place, and no matter of time-outs.
"""

from antiphon.bus import messages as m
from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say('The first of two envelopes is lost, and B\'s disk is slow. A and C hold "two" and not "one".')
    stage.stall("B")
    stage.lose("B", "A", m.Data)
    stage.lose("B", "C", m.Data)
    stage.publish("B", "one", "two")
    stage.settle()
    stage.crash("B")
    stage.say(
        """B starts again and publishes. Its OPEN is entry 4, so 4 is the name of its new run. "two" is
        given up everywhere when that entry is learned; nobody reports it again."""
    )
    stage.restart("B")
    stage.publish("B", "new")
    stage.wait_confirmed("new")
    stage.say("B itself has to learn the order again; then nobody holds anything that waits for a number.")
    stage.wait_applied("B", 5)
    stage.wait(lambda: all(stage[name].replica.unsettled == 0 for name in "ABC"))
    stage.look()
