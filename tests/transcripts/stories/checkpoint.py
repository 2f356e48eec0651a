"""A checkpoint becomes stable, and the log lets go

Every so many entries the sequencer puts a mark into the order. Everybody keeps its state as it is exactly
behind the mark, and reports when that is durable. When two have reported the same digest, an entry says so:
the checkpoint is stable. The log is kept from the stable checkpoint before the last one on, so that one
damaged file is no loss.
"""

from tests.transcripts.stage import Stage

SETTINGS = {"checkpoint_entries": 3}


def play(stage: Stage) -> None:
    stage.begin()
    stage.say("The third entry since the last mark calls for one; it rides in the same submit.")
    stage.publish("B", "one")
    stage.settle()
    stage.say("The next checkpoint. When it is stable, what the log holds before the first one may go.")
    stage.publish("B", "two", "three", "four")
    stage.settle()
    stage.look()
