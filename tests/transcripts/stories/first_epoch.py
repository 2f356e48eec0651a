"""The first epoch of a channel

Three nodes start with empty disks. The one with the lowest rank is the first to lose patience: A asks
whether anybody hears a sequencer, claims an epoch, has it promised, starts it, and says so in the order
itself. A node that wants to publish opens as a producer; the number of that entry names its run.
"""

from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.say(
        """The claim is durable before anybody hears of the epoch, the promise before anybody counts it,
        the (empty) log of the epoch before A calls itself leader."""
    )
    stage.wait(lambda: stage["A"].replica.is_serving)
    stage.settle()
    stage.say("C publishes for the first time.")
    stage.publish("C", "hello")
    stage.settle()
    stage.look()
