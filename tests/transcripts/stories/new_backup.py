"""A node joins from a checkpoint

C was away while two checkpoints became stable and the logs of the others let go of what lies before the
first of them. What C lacks is in nobody's log any more. It takes the newest stable checkpoint of another
node, and the envelopes that this refers to; verifies all of it; makes it durable; and only then stands
behind it.
"""

from tests.transcripts.stage import Stage

# Nobody asks twice while the story waits, and B is not fenced for being silent.
SETTINGS = {"checkpoint_entries": 3, "fetch_delay_ms": 200, "silence_ms": 60_000}


def play(stage: Stage) -> None:
    stage.begin()
    stage.say("While C is down, B publishes five envelopes, and two checkpoints become stable (not told).")
    stage.crash("C")
    stage.publish_untold("B", *"abcde")
    stage.look()
    stage.say(
        """C starts again. A cannot send what C's log lacks, and tells where its own begins. The newest
        checkpoint that is stable will do. Nothing that C is given counts before it is proved: the
        pieces by checksums, the whole by the digest that the entry "is stable" names, each envelope by its
        own digest. The copies are durable before the file that refers to them, and the file before C stands
        behind it."""
    )
    stage.restart("C")
    stage.wait(lambda: stage["C"].replica.applied == stage["A"].replica.applied)
    stage.say("The log of C begins behind the checkpoint, and goes on from there like the others.")
    stage.publish("B", "f")
    stage.settle()
    stage.wait(lambda: stage["C"].replica.last == stage["A"].replica.last)
    stage.look()
