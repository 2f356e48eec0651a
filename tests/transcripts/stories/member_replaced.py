"""A member is replaced

A, B and C hold the channel; D shall take C's place. D joins as a data server first and learns what is
committed; it has no vote. Then one entry closes the order of the old configuration: the last thing that A, B
and C number together. The new configuration goes on from there, in an epoch of its own, sealed by its own
commit servers, each of which must hold that entry as committed.
"""

from dataclasses import replace

from antiphon.bus.group import GroupConfig
from tests.transcripts.stage import Stage, disk_id


def with_nodes(config: GroupConfig, nodes: tuple[int, ...], voters: tuple[int, ...]) -> GroupConfig:
    return replace(
        config,
        config_id=config.config_id + 1,
        nodes=nodes,
        disk_ids=tuple(disk_id(node) for node in nodes),
        data_servers=nodes,
        checkpoint_servers=nodes,
        commit_servers=voters,
        candidates=voters,
    )


def play(stage: Stage) -> None:
    stage.begin("B")
    second = with_nodes(stage.config, (1, 2, 3, 4), (1, 2, 3))
    third = with_nodes(second, (1, 2, 4), (1, 2, 4))
    stage.say(
        "Configuration 2: D is a data server and has no vote. It learns the order and fetches the data."
    )
    stage.join("D", second)
    stage.propose("A", second)
    stage.wait(lambda: stage["A"].replica.is_serving)
    stage.wait(lambda: stage["D"].replica.applied == stage["A"].replica.applied)
    stage.look()
    stage.say("Configuration 3: D votes and C is gone.")
    stage.propose("A", third)
    stage.wait(lambda: stage["A"].replica.is_serving)
    stage.wait(lambda: stage["D"].replica.applied == stage["A"].replica.applied)
    stage.look()
    stage.say("C may be switched off.")
    stage.crash("C")
    stage.publish("B", "without C")
    stage.wait_confirmed("without C")
    stage.look()
