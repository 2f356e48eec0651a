"""Disks of a group rot, fail and vanish while the channel runs; the nodes mend themselves from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from antiphon.bus import effects as bus
from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.ports import Location
from antiphon.errors import Damaged, FormatMismatch, Unreadable
from antiphon.journal import checkpoints
from antiphon.journal.format import (
    RECORD_HEADER_BYTES,
    SUPERBLOCK,
    checkpoint_name,
    checkpoint_numbers,
    segment_name,
    segment_numbers,
)
from antiphon.journal.superblock import SuperblockFile
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.ranges import Ranges
from antiphon.sim.disk import SimDisk
from antiphon.sim.spoiling import spoil_checkpoint
from tests.browsing import browse
from tests.nodes import SEGMENTS, Cluster, Life, stored
from tests.traffic import SETTINGS, Traffic, a_busy_cluster, check_equal, settle

GEOMETRY = SEGMENTS.geometry()
STRANGER = 9
"""Whoever asks from outside; what it is told is seen on its way."""


def a_cluster_with_history(seed: int) -> tuple[Cluster, list[Traffic]]:
    """Everybody has two checkpoints, and messages older than they are."""
    cluster, traffic = a_busy_cluster(seed, lists_disks=True)
    # A log that had been behind begins at the newest checkpoint for a while.
    assert cluster.run_ms(
        30_000,
        lambda: all(
            100 < life.replica.base < newest_checkpoint(life.disk) for life in cluster.lives.values()
        ),
    )
    return cluster, traffic


def newest_checkpoint(disk: SimDisk) -> int:
    return max(checkpoint_numbers(disk.list_files()), default=0)


def oldest_record(life: Life) -> Location:
    """Of the queue. It lies below the base: no log names it any more."""
    queue = life.manager.state.directory.named("queue:orders")
    assert queue is not None and queue.live.first <= life.replica.base
    return queue.index.find(queue.live.first).location


def rot(disk: SimDisk, place: Location, at: int = RECORD_HEADER_BYTES + 40) -> None:
    disk.flip(segment_name(place.segment), place.offset + at)


def look(cluster: Cluster, life: Life) -> list[m.RangeReply]:
    """What a client manager is shown of the queue."""
    replies: list[m.RangeReply] = []

    def note(sender: int, to: int, message: m.BusMessage) -> None:
        if to == STRANGER and isinstance(message, m.RangeReply):
            replies.append(message)

    cluster.on_said = note
    queue = life.manager.state.directory.named("queue:orders")
    assert queue is not None
    life.take(bus.Received(STRANGER, browse(queue.id)))
    assert cluster.run_ms(5_000, lambda: bool(replies)), "the page comes"
    return replies


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_message_is_fetched_from_another_replica_and_never_served(
    seed: int, is_leader: bool
) -> None:
    cluster, traffic = a_cluster_with_history(seed)
    leader = cluster.leader()
    life = cluster.lives[leader if is_leader else next(node for node in cluster.lives if node != leader)]
    place = oldest_record(life)
    rot(life.disk, place)
    rounds = traffic[0].rounds
    (page,) = look(cluster, life)
    assert bytes(200) in b"".join(page.page), "the bodies are what they were"
    assert place not in life.manager.state.records(), "it lies elsewhere now"
    assert len([alarm for alarm in life.alarms if "is damaged" in alarm]) == 1
    assert [alarm for alarm in life.alarms if "written anew" in alarm]
    assert traffic[0].rounds >= rounds
    assert cluster.leader() == leader, "nobody stepped down"
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)


def test_a_primary_holds_back_what_is_damaged_and_then_delivers_in_order() -> None:
    cluster, traffic = a_cluster_with_history(1)
    life = cluster.lives[cluster.leader()]
    queue = life.manager.state.directory.named("queue:orders")
    assert queue is not None
    for one in traffic:
        one.is_on = False
    cluster.run_ms(500)
    waiting = [number for start, stop in queue.live for number in range(start, stop)]
    rot(life.disk, queue.index.find(waiting[4]).location)
    through = next(one for one in traffic if one.through != life.node_id)
    delivered: list[int] = []

    def note(sender: int, to: int, message: m.BusMessage) -> None:
        if isinstance(message, m.Deliver):
            for piece in message.pieces:
                assert bytes(200) in b"".join(piece.buffers)
                delivered.extend(piece.sequences)

    cluster.on_said = note
    # The client manager there has no such consumer, and would say so.
    cluster.is_lost = lambda message: isinstance(message, m.Registered)
    term = life.manager.term
    register = m.Register(
        5, through.client.session, 1, queue.id, 0, "", 1_000, 1 << 20, Ranges(), 1, False, term
    )
    life.take(bus.Received(through.through, register))
    assert cluster.run_ms(10_000, lambda: len(delivered) == len(waiting))
    assert delivered == waiting
    assert [alarm for alarm in life.alarms if "is damaged" in alarm]


@pytest.mark.parametrize("at", [RECORD_HEADER_BYTES + 40, 20], ids=["payload", "header"])
def test_damage_is_found_when_the_node_starts_and_mended_though_nobody_reads(at: int) -> None:
    cluster, traffic = a_cluster_with_history(2)
    state, disk_id = cluster.lives[3].manager.state, cluster.lives[3].disk_id
    before = set(state.records())
    cluster.run_ms(300)
    kept = before.intersection(state.records())
    old, new = min(kept), max(kept)
    cluster.stop(3)
    disk = cluster.disk_of(3)
    rot(disk, old, at)
    rot(disk, new, at)
    life = cluster.start(3)
    assert life.disk_id == disk_id, "its order is whole: it keeps its vote"
    assert cluster.run_ms(10_000, lambda: old not in life.manager.state.records())
    assert [alarm for alarm in life.alarms if "is damaged" in alarm]
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)


def rot_order(disk: SimDisk) -> None:
    """Both copies of the first block of the newest segment in use."""
    for number in segment_numbers(disk.list_files()):
        for offset in GEOMETRY.copies(0):
            disk.flip(segment_name(number), offset + 100)


def rot_superblock(disk: SimDisk) -> None:
    for copy in range(3):
        disk.flip(SUPERBLOCK, copy * 4096 + 50)


def rot_checkpoints(disk: SimDisk) -> None:
    for n in checkpoint_numbers(disk.list_files()):
        disk.flip(checkpoint_name(n), 60)


def rot_newest(disk: SimDisk) -> None:
    disk.flip(checkpoint_name(newest_checkpoint(disk)), 60)


def lose_superblock(disk: SimDisk) -> None:
    disk.remove(SUPERBLOCK)


@pytest.mark.parametrize("ruin", [rot_order, rot_superblock, lose_superblock])
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_ruined_disk_is_put_aside_and_the_node_begins_anew(
    ruin: Callable[[SimDisk], None], is_leader: bool
) -> None:
    cluster, traffic = a_cluster_with_history(3)
    leader = cluster.leader()
    ruined = leader if is_leader else next(node for node in (3, 2) if node != leader)
    before = cluster.lives[ruined].disk_id
    cluster.stop(ruined)
    disk = cluster.disk_of(ruined)
    ruin(disk)
    files = len(disk.list_files())
    life = cluster.start(ruined)
    assert life.disk_id != before
    assert "lost+found" in life.alarms[0] and "is damaged" in life.alarms[0]
    assert life.replica.is_amnesiac, "it has no vote"
    aside = [name for name in disk.all_files() if name.startswith("lost+found/")]
    assert len(aside) == files + 1, "nothing is deleted, and a note says why"
    assert cluster.run_ms(60_000, lambda: not life.replica.is_amnesiac), "its new disk is listed"
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)
    assert life.replica.is_synchronized
    check_that_it_votes(cluster, ruined)


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_node_whose_checkpoints_are_ruined_keeps_its_vote_and_is_given_a_state(is_leader: bool) -> None:
    cluster, traffic = a_cluster_with_history(3)
    leader = cluster.leader()
    ruined = leader if is_leader else next(node for node in (3, 2) if node != leader)
    before = cluster.lives[ruined].disk_id
    cluster.stop(ruined)
    rot_checkpoints(cluster.disk_of(ruined))
    life = cluster.start(ruined)
    assert life.disk_id == before and not life.replica.is_amnesiac
    assert life.replica.applied == 0
    assert cluster.run_ms(60_000, lambda: life.replica.is_synchronized)
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)
    (alarm,) = life.alarms
    assert "begins without a state" in alarm and "lost+found" not in alarm
    check_that_it_votes(cluster, ruined)


def check_that_it_votes(cluster: Cluster, node: int) -> None:
    """With one of the others gone, nothing can be ordered without it."""
    other = next(one for one in cluster.lives if one != node)
    cluster.stop(other)
    assert cluster.run_ms(10_000, lambda: cluster.leader() != 0)
    applied = cluster.lives[node].replica.applied
    traffic = Traffic(cluster, node)
    assert cluster.run_ms(10_000, lambda: cluster.lives[node].replica.applied > applied + 50)
    traffic.is_on = False


def test_after_a_failed_sync_a_node_begins_with_new_files() -> None:
    cluster, traffic = a_cluster_with_history(1)
    before = cluster.lives[3].disk_id
    cluster.stop(3)
    life = cluster.start(3, distrusted="a sync failed")
    assert life.disk_id != before and "a sync failed" in life.alarms[0]
    assert cluster.run_ms(60_000, lambda: not life.replica.is_amnesiac)
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)


def test_a_wiped_disk_is_another_disk() -> None:
    cluster, traffic = a_cluster_with_history(0)
    cluster.stop(2, wipes=True)
    life = cluster.start(2)
    assert life.replica.is_amnesiac
    assert cluster.run_ms(60_000, lambda: not life.replica.is_amnesiac)
    settle(cluster, traffic)
    check_equal(cluster)
    check_that_it_votes(cluster, 2)


def test_a_damaged_newest_checkpoint_leaves_the_older_one() -> None:
    cluster, traffic = a_cluster_with_history(2)
    disk_id = cluster.lives[3].disk_id
    cluster.stop(3)
    disk = cluster.disk_of(3)
    disk.flip(checkpoint_name(newest_checkpoint(disk)), 60)
    life = cluster.start(3)
    assert life.disk_id == disk_id and life.replica.applied > 0
    assert [note for note in life.notes if "cannot be used" in note]
    settle(cluster, traffic)
    check_equal(cluster)


@pytest.mark.parametrize("ruin", [spoil_checkpoint, rot_newest], ids=["does not read", "has rotted"])
def test_in_a_rolling_restart_over_newest_checkpoints_that_cannot_be_used_nothing_is_lost(
    ruin: Callable[[SimDisk], object],
) -> None:
    cluster, traffic = a_cluster_with_history(2)
    fallen_back = 0
    for node, before in list(cluster.lives.items()):
        cluster.stop(node)
        disk = cluster.disk_of(node)
        older, newest = checkpoint_numbers(disk.list_files())[-2:]
        ruin(disk)
        life = cluster.start(node)
        assert life.disk_id == before.disk_id and not life.replica.is_amnesiac
        (note,) = [note for note in life.notes if "cannot be used" in note]
        assert note.startswith(checkpoint_name(newest))
        if older >= life.replica.base:
            assert f"the node begins with {checkpoint_name(older)}" in note
            assert life.replica.applied == older and not life.alarms
            fallen_back += 1
        else:
            # Its log lagged behind the newest one when that became stable, and begins behind it.
            assert "begins without a state" in life.alarms[0]
        replica = life.replica
        assert cluster.run_ms(20_000, lambda r=replica: r.is_synchronized), "it is back"
        assert not [name for name in disk.all_files() if "lost+found" in name]
    assert fallen_back
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)


def test_a_node_whose_checkpoints_do_not_read_keeps_its_vote_and_is_given_a_state() -> None:
    cluster, traffic = a_cluster_with_history(3)
    before = cluster.lives[3].disk_id
    cluster.stop(3)
    spoil_all(cluster.disk_of(3))
    life = cluster.start(3)
    assert life.disk_id == before and not life.replica.is_amnesiac and life.replica.applied == 0
    assert cluster.run_ms(60_000, lambda: life.replica.is_synchronized)
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)
    check_that_it_votes(cluster, 3)


def spoil_all(disk: SimDisk) -> None:
    for which in range(len(checkpoint_numbers(disk.list_files()))):
        spoil_checkpoint(disk, which)


def test_a_fault_of_the_software_on_all_nodes_costs_no_disk_and_is_over_when_it_is_mended() -> None:
    cluster, traffic = a_cluster_with_history(1)
    for one in traffic:
        one.is_on = False
    cluster.run_ms(3_000)  # what was on its way
    assert cluster.run_ms(10_000, cluster.is_level)
    whole, applied = stored(cluster.lives[1].manager), cluster.lives[1].replica.applied
    disk_ids = {node: life.disk_id for node, life in cluster.lives.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChannelState, "_read_logical", does_not_read)
        for node in disk_ids:
            cluster.stop(node)
            cluster.start(node)
            cluster.run_ms(5_000)
        lives = cluster.lives
        assert {node: life.disk_id for node, life in lives.items()} == disk_ids
        assert [life.replica.applied for life in lives.values()] == [0, 0, 0], "nobody has a state"
    for node in disk_ids:
        # The version that can read it, one node after the other.
        cluster.stop(node)
        assert not cluster.start(node).alarms
    assert cluster.run_ms(20_000, lambda: cluster.leader() != 0 and cluster.is_level())
    assert cluster.lives[1].replica.applied >= applied
    assert stored(cluster.lives[1].manager) == whole
    check_equal(cluster)


def does_not_read(state: ChannelState, reader: object) -> None:
    raise KeyError("a fault of the software")


@pytest.mark.parametrize("nodes", [1, 3], ids=["alone", "group"])
def test_a_state_of_another_version_is_refused_and_nothing_is_touched(nodes: int) -> None:
    cluster = with_history(Cluster(5, nodes, lists_disks=nodes > 1, **SETTINGS))
    cluster.stop(1)
    disk = cluster.disk_of(1)
    spoil_checkpoint(disk, magic=b"AMS0")
    before = disk.contents()
    with pytest.raises(FormatMismatch, match="in format AMS0"):
        cluster.start(1)
    assert disk.contents() == before


def with_history(cluster: Cluster) -> Cluster:
    assert cluster.run_ms(5_000, lambda: cluster.leader() != 0)
    traffic = Traffic(cluster, cluster.leader())
    assert cluster.run_ms(60_000, lambda: all(life.replica.base > 100 for life in cluster.lives.values()))
    traffic.is_on = False
    assert cluster.run_ms(10_000, cluster.is_level)
    cluster.run_ms(1_000)
    return cluster


def test_a_node_that_is_alone_begins_with_the_older_checkpoint() -> None:
    cluster = with_history(Cluster(6, 1, **SETTINGS))
    whole, digest = stored(cluster.lives[1].manager), cluster.lives[1].manager.state.digest()
    applied = cluster.lives[1].replica.applied
    cluster.stop(1)
    n = spoil_checkpoint(cluster.disk_of(1))
    life = cluster.start(1)
    assert 0 < life.replica.applied < n
    assert [note for note in life.notes if checkpoint_name(n) in note and "does not read" in note]
    assert cluster.run_ms(10_000, lambda: life.replica.is_serving and life.replica.applied > applied)
    assert stored(life.manager) == whole
    assert life.manager.state.digest() != digest, "a new term has begun"


@pytest.mark.parametrize("ruin", [spoil_all, rot_checkpoints], ids=["does not read", "has rotted"])
def test_a_node_that_is_alone_and_has_no_checkpoint_that_it_can_use_is_refused_and_nothing_is_touched(
    ruin: Callable[[SimDisk], None],
) -> None:
    cluster = with_history(Cluster(6, 1, **SETTINGS))
    cluster.stop(1)
    disk = cluster.disk_of(1)
    ruin(disk)
    before = disk.contents()
    with pytest.raises(
        Unreadable if ruin is spoil_all else Damaged, match="no checkpoint can be used"
    ) as error:
        cluster.start(1)
    assert "\n" not in error.value.text
    assert disk.contents() == before


def test_a_place_that_holds_nothing_makes_a_node_that_is_alone_begin_with_the_older_checkpoint() -> None:
    cluster = with_history(Cluster(7, 1, **SETTINGS))
    whole = stored(cluster.lives[1].manager)
    cluster.stop(1)
    disk = cluster.disk_of(1)
    n = checkpoint_numbers(disk.list_files())[-1]
    misplace_a_record(disk, n)
    life = cluster.start(1)
    assert 0 < life.replica.applied < n
    assert [note for note in life.notes if checkpoint_name(n) in note and "is damaged at byte" in note]
    assert cluster.run_ms(10_000, lambda: life.replica.is_serving)
    assert stored(life.manager) == whole


def misplace_a_record(disk: SimDisk, n: int) -> None:
    """The checkpoint refers to a place that was never written, as if its copies had not become durable."""
    disk_id = SuperblockFile.load(disk).current.disk_id
    found = checkpoints.load(disk, disk_id, n)
    checkpoint = CheckpointState.decode(found.state)
    state = ChannelState.restore(checkpoint.manager_state)
    records = state.records()
    moved = {place: place for place in records} | {records[0]: records[0]._replace(segment=4711)}
    state.move_records(moved)
    _, data = state.capture()
    spoiled = replace(checkpoint, manager_state=data).encode()
    disk.write_whole(
        checkpoint_name(n), checkpoints.encode(disk_id, n, found.digest, spoiled, found.segments)
    )


def test_without_any_checkpoint_an_order_that_reaches_back_to_the_beginning_is_enough() -> None:
    cluster, traffic = a_busy_cluster(1, lists_disks=True)

    def has_one() -> bool:
        return len(checkpoint_numbers(cluster.lives[3].disk.list_files())) == 1

    assert cluster.run_ms(20_000, has_one)
    disk_id = cluster.lives[3].disk_id
    cluster.stop(3)
    rot_checkpoints(cluster.disk_of(3))
    life = cluster.start(3)
    assert life.disk_id == disk_id and life.replica.applied == 0
    settle(cluster, traffic)
    check_equal(cluster)


def test_two_nodes_may_each_have_rotten_messages_as_long_as_they_are_different_ones() -> None:
    cluster, traffic = a_cluster_with_history(0)
    settle(cluster, traffic)
    whole = stored(cluster.lives[3].manager)
    for node, share in ((1, 0), (2, 1)):
        life = cluster.lives[node]
        cluster.stop(node)
        for place in sorted(life.manager.state.records())[share::3]:
            rot(cluster.disk_of(node), place)
        cluster.start(node)
        assert cluster.run_ms(20_000, lambda: cluster.leader() != 0)
        cluster.run_ms(2_000)
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)
    assert stored(cluster.lives[1].manager) == whole


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_node_without_room_holds_up_nobody_and_catches_up_when_there_is_some(is_leader: bool) -> None:
    cluster, traffic = a_cluster_with_history(1)
    leader = cluster.leader()
    full = leader if is_leader else next(node for node in cluster.lives if node != leader)
    through = next(one for one in traffic if one.through != full)
    life = cluster.lives[full]
    refused: list[m.BusMessage] = []

    def note(sender: int, to: int, message: m.BusMessage) -> None:
        if isinstance(message, m.CommitAcknowledge) and message.status is m.ServerStatus.NO_SPACE:
            assert sender == full
            refused.append(message)

    cluster.on_said = note
    life.disk.capacity = life.disk.bytes_used
    assert cluster.run_ms(60_000, lambda: bool(refused)), "it says that it has no room"
    others = [other for other in cluster.lives.values() if other is not life]
    rounds, applied = through.rounds, max(other.replica.applied for other in others)
    assert cluster.run_ms(20_000, lambda: all(other.replica.applied > applied + 1_000 for other in others))
    assert through.rounds > rounds and cluster.leader() not in (0, full)
    assert life.replica.applied < others[0].replica.applied
    life.disk.capacity = None
    cluster.run_ms(2_000)
    settle(cluster, traffic)
    check_equal(cluster)


def test_a_node_of_a_group_that_lists_no_disks_refuses_to_begin_with_a_ruined_one() -> None:
    cluster, _ = a_busy_cluster(1)
    cluster.run_ms(500)
    cluster.stop(3)
    rot_superblock(cluster.disk_of(3))
    names = cluster.disk_of(3).all_files()
    with pytest.raises(Damaged, match="superblock"):
        cluster.start(3)
    assert cluster.disk_of(3).all_files() == names


def ruin_at_random(cluster: Cluster, node: int) -> None:
    """Something happens to the disk of one node, which then begins again and is level in the end."""
    chance, life = cluster.chance, cluster.lives[node]
    what = chance.choice(("messages", "a byte", "many bytes", "a file", "all files", "a sync"))
    if what == "messages":
        # While it runs, and everybody looks at them.
        for place in chance.sample(life.manager.state.records(), 3):
            rot(life.disk, place, chance.choice((10, RECORD_HEADER_BYTES + 20)))
        for one in cluster.lives.values():
            queue = one.manager.state.directory.named("queue:orders")
            assert queue is not None
            one.take(bus.Received(STRANGER, browse(queue.id)))
        cluster.run_ms(chance.randint(100, 2_000))
    cluster.stop(node, wipes=what == "all files")
    disk = cluster.disk_of(node)
    if "byte" in what:
        for _ in range(1 if what == "a byte" else 40):
            name = chance.choice(disk.list_files())
            disk.flip(name, chance.randrange(disk.size(name)))
    elif what == "a file":
        disk.remove(chance.choice(disk.list_files()))
    cluster.run_ms(chance.randint(0, 3_000))
    replica = cluster.start(node, distrusted="a sync failed" if what == "a sync" else "").replica
    is_back = cluster.run_ms(60_000, lambda: replica.is_synchronized and not replica.is_amnesiac)
    assert is_back, f"node {node} lost {what} and does not come back"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_one_disk_at_a_time_all_are_equal_in_the_end(seed: int) -> None:
    cluster, traffic = a_cluster_with_history(seed)
    cluster.loss = 0.03
    for _ in range(4):
        ruin_at_random(cluster, cluster.chance.choice((1, 2, 3)))
    cluster.loss = 0.0
    settle(cluster, traffic)
    check_equal(cluster, alarms=True)
