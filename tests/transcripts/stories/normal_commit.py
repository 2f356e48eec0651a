"""A normal commit

Three nodes A, B and C hold one channel. A leads: it is the sequencer of epoch 1.A. B publishes an
envelope. It gets its number when A's data server has written it, durable or not. The number holds when two
nodes have envelope and number on disk, the sequencer's own among them. Nobody relies on anything before.
"""

from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.look()
    stage.say(
        """B publishes. The envelope goes to all data servers, and A numbers it in the step in which it
        arrives. One sync makes envelope and number durable, and one acknowledgement speaks for both. What
        two of three have said is enough: here B is told before C's disk holds anything."""
    )
    stage.publish("B", "hello")
    stage.settle()
    stage.say(
        """Three envelopes arrive one after the other, and each is submitted at once. One sync serves
        everything that came meanwhile: one acknowledgement of each node, one commit."""
    )
    stage.publish("B", "two", "three", "four")
    stage.settle()
    stage.look()
