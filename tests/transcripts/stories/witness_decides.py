"""A witness decides

A and B hold the channel; C is a witness: a commit server that stores the order and no data, and never leads.
A crashes. B alone could not tell a dead A from a cut cable; with C's vote it can lead. The group may go on
with one copy while A is away (min_copies = 1), which is an entry of the order like any other.
"""

from tests.transcripts.stage import Stage

SETTINGS = {
    "data_servers": (1, 2),
    "checkpoint_servers": (1, 2),
    "candidates": (1, 2),
    "min_copies": 1,
}


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.say("The witness gets the numbers, not the envelopes.")
    stage.publish("B", "one")
    stage.settle()
    stage.say("A crashes. B and the witness are two of three.")
    stage.crash("A")
    stage.publish("B", "two")
    stage.wait(lambda: stage["B"].replica.is_serving)
    stage.say('"two" needs a second copy, which nobody has. When A was silent for a while, one copy will do.')
    stage.wait_confirmed("two")
    stage.look()
    stage.say("A comes back, catches up, and two copies are asked for again.")
    stage.restart("A")
    stage.wait(lambda: stage["A"].replica.applied >= 8)
    stage.look()
