"""A damaged commit server does not vote

C finds that its log is not what was written. It may have acknowledged what it no longer has, so it must not
help to decide anything: it promises nothing, acknowledges nothing, and never says that it does not have
something. A and B go on without it. When A crashes, B alone is no quorum: nothing is decided until A is back.
Better no answer than a wrong one.
"""

from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say("Two of three are enough.")
    stage.damage("C")
    stage.publish("B", "one")
    stage.settle()
    stage.say("A crashes. B asks around; C does not encourage it, and B's own word is not enough.")
    stage.crash("A")
    stage.publish("B", "two")
    stage.wait_ms(1_400)
    stage.look()
    stage.say(
        """A is back, with all that it ever acknowledged, and without "two", which came when it was down. B
        sends "two" again when it hears of the new epoch, so that A can acknowledge its number."""
    )
    stage.restart("A")
    stage.wait_confirmed("two")
    stage.look()
