"""A commit in two rounds

A group with a witness, or one that is told so (one_round = 0), makes envelopes durable before they are
numbered. B publishes an envelope. It gets its number when two data servers hold it durably, the sequencer's
own among them. The number holds when two commit servers have it on disk. Nobody relies on anything before.
"""

from tests.transcripts.stage import Stage

SETTINGS = {"one_round": 0}


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.look()
    stage.say(
        """B publishes. The envelope goes to all data servers, and a report says that it is durable. What
        two of three have said is enough: here B is told before its own disk holds the number."""
    )
    stage.publish("B", "hello")
    stage.settle()
    stage.say("One round serves everything that came meanwhile: three envelopes, one submit, one commit.")
    stage.publish("B", "two", "three", "four")
    stage.settle()
    stage.look()
