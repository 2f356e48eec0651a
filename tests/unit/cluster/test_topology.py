"""From counts to nodes, and from nodes to the groups of the channels."""

from __future__ import annotations

import pytest

from antiphon.bus.group import NO_DISK
from antiphon.cluster.topology import Counts, Role, channel_names, lay_out
from antiphon.errors import NodeError
from antiphon.wire.lanes import Lane
from tests.unit.cluster.clusters import a_cluster, sources


def test_every_node_has_a_name_a_number_and_its_ports() -> None:
    spec = a_cluster(client_managers=2, message_managers=3, channels=2)
    assert [(one.number, one.name) for one in spec.nodes] == [
        *[(1, "cm-1"), (2, "cm-2")],
        *[(3, "mm-a-1"), (4, "mm-a-2"), (5, "mm-a-3")],
        *[(6, "mm-b-1"), (7, "mm-b-2"), (8, "mm-b-3")],
    ]
    assert [one.listen for one in spec.client_managers] == [("127.0.0.1", 7420), ("127.0.0.1", 7421)]
    assert spec.servers == ["127.0.0.1:7420", "127.0.0.1:7421"]
    ports = [port for one in spec.nodes for port in one.bus.values()]
    assert len(ports) == len(set(ports)) == 2 * 2 + 6, "a client manager has one for each channel"
    assert [one.rank for one in spec.message_managers("b")] == [1, 2, 3]


def test_a_channel_has_its_own_servers_and_all_client_managers() -> None:
    spec = a_cluster(client_managers=2, message_managers=3, channels=2)
    group = spec.group_config("b")
    assert group.nodes == (6, 7, 8, 1, 2)
    assert group.candidates == group.data_servers == group.checkpoint_servers == (6, 7, 8)
    assert group.commit_servers == (6, 7, 8)
    assert (group.data_quantity, group.commit_quantity, group.seal_quantity) == (2, 2, 2)
    assert group.min_copies == 0, "never below two"
    assert group.disk_of(6) == spec.node("mm-b-1").disk_id != NO_DISK
    assert group.disk_of(1) == b"", "a client manager has none, and nobody looks for it"
    assert set(spec.peers("b")) == {6, 7, 8, 1, 2}


def test_each_role_listens_to_what_concerns_it() -> None:
    spec = a_cluster(client_managers=1, message_managers=2)
    peers = spec.peers("a")
    assert peers[spec.node("cm-1").number].lanes == {Lane.CONTROL, Lane.DELIVERIES}
    assert peers[spec.node("mm-a-1").number].lanes == {Lane.DATA, Lane.CONTROL}
    assert peers[spec.node("w-a-1").number].lanes == {Lane.CONTROL}


def test_two_message_managers_get_a_witness_and_go_on_with_one_copy() -> None:
    spec = a_cluster(message_managers=2)
    (witness,) = spec.witnesses("a")
    group = spec.group_config("a")
    assert group.commit_servers == (2, 3, witness.number)
    assert group.data_servers == group.candidates == (2, 3)
    assert (group.commit_quantity, group.data_quantity, group.min_copies) == (2, 2, 1)
    assert group.disk_of(witness.number) == witness.disk_id


@pytest.mark.parametrize(
    ("managers", "witnesses", "voters"),
    [(1, 0, 1), (1, 2, 3), (2, 0, 2), (2, 1, 3), (3, 0, 3), (4, 0, 3), (4, 1, 5), (5, 0, 5), (8, 0, 5)],
)
def test_votes_are_odd_and_of_the_lowest_ranks(managers: int, witnesses: int, voters: int) -> None:
    spec = a_cluster(message_managers=managers, witnesses=witnesses)
    group = spec.group_config("a")
    assert len(group.commit_servers) == voters
    by_rank = tuple(one.number for one in spec.message_managers("a"))
    assert group.candidates == by_rank[: voters - witnesses]
    assert group.data_servers == by_rank
    assert group.commit_quantity + group.seal_quantity == voters + 1 + (voters == 2)


def test_witnesses_that_make_the_votes_even_are_refused() -> None:
    with pytest.raises(NodeError, match="6 votes, and an odd number is needed: have 0 or 2 witnesses"):
        a_cluster(message_managers=5, witnesses=1)
    with pytest.raises(NodeError, match="have 1 or 3 witnesses"):
        a_cluster(message_managers=2, witnesses=2)


@pytest.mark.parametrize("counts", [{"client_managers": 0}, {"message_managers": 0}, {"channels": 0}])
def test_a_cluster_has_one_of_everything(counts: dict[str, int]) -> None:
    with pytest.raises(NodeError, match="cannot have 0"):
        a_cluster(**counts)


def test_too_much_is_refused() -> None:
    with pytest.raises(NodeError, match="at most 52"):
        a_cluster(channels=53)
    with pytest.raises(NodeError, match="at most 65,535"):
        a_cluster(client_managers=65_535)


def test_channels_are_named_in_their_order() -> None:
    names = channel_names(52)
    assert names == sorted(set(names)) and len(names) == 52


def test_lanes_have_groups_of_their_own_with_udp_only() -> None:
    spec = a_cluster(channels=3)
    groups = [address for channel in spec.channels for address in channel.multicast.values()]
    assert len(set(groups)) == 9
    assert not any(channel.multicast for channel in a_cluster(transport="tcp").channels)


def test_hosts_are_where_they_were_said_to_be() -> None:
    spec = lay_out(Counts(message_managers=2), sources(lambda name: f"{name}.example"))
    assert {one.host for one in spec.nodes} == {
        f"{name}.example" for name in ("cm-1", "mm-a-1", "mm-a-2", "w-a-1")
    }
    assert spec.node("cm-1").listen == ("cm-1.example", 7420)
    assert spec.datagram_bytes == 1_400 and a_cluster().datagram_bytes == 60_000


def test_an_unknown_node_is_told_who_there_is() -> None:
    with pytest.raises(NodeError, match="no node 'mm-b-1'; there are cm-1, mm-a-1"):
        a_cluster().node("mm-b-1")
    assert a_cluster().node("mm-a-1").role is Role.MESSAGE_MANAGER
