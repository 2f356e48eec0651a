"""A slow disk

Whatever a node says about itself is on its disk when it says it. A server whose disk stalls is silent: it
reports nothing and acknowledges nothing, and the other two go on without it. If it dies like that, nothing is
lost that anybody relied on.
"""

from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say("C's disk takes writes and does not sync. A and B are enough.")
    stage.stall("C")
    stage.publish("B", "one")
    stage.settle()
    stage.look()
    stage.say(
        """C knows that 4 is committed and has the envelope in memory, but does not apply what is not
        durable at home. It dies; what it had written is gone, and nobody had heard of it."""
    )
    stage.crash("C")
    stage.restart("C")
    stage.say("C learns the order again, fetches what it lost, and is sent what its log lacks.")
    stage.wait_applied("C", 4)
    stage.wait(lambda: stage["C"].replica.last == 4)
    stage.look()
