"""A disk is replaced

C comes back with an empty disk. What the lost disk had promised and held may have been counted, so C must not
vote as if nothing had been: its messages carry the id of the new disk, and nobody counts them. C learns what
is committed. When it has caught up, the sequencer orders a configuration that lists the new disk: a new
server under an old name.
"""

from tests.transcripts.stage import Stage


def play(stage: Stage) -> None:
    stage.begin("B")
    stage.look()
    stage.crash("C")
    stage.wipe("C")
    stage.say(
        "C starts. It learns the order, and writes down what it hears to be committed, as no epoch's log."
    )
    stage.restart("C")
    stage.wait(lambda: stage["C"].replica.applied == stage["A"].replica.applied)
    stage.look()
    stage.say(
        """A sees that C has caught up and orders configuration 2, in which C has its new disk. Behind that
        entry A numbers nothing. When it is committed, configuration 1 is over; A stands in configuration 2,
        and now C may vote, for it holds the entry that began it."""
    )
    stage.wait(lambda: all(stage[name].replica.config.config_id == 2 for name in "ABC"))
    stage.wait(lambda: stage["A"].replica.is_serving)
    stage.wait(lambda: stage["C"].replica.log_epoch == stage["A"].replica.epoch)
    stage.look()
