"""cluster.toml: there and back, what is wrong with it, and what of it must agree."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.cluster.config_file import digest, essential_keys, read, write
from antiphon.cluster.topology import TlsMode, complaint_about_votes
from antiphon.errors import NodeError
from tests.unit.cluster.clusters import a_cluster

SPEC = a_cluster(client_managers=2, message_managers=2)
TEXT = write(SPEC)


@given(
    client_managers=st.integers(1, 4),
    message_managers=st.integers(1, 6),
    channels=st.integers(1, 30),
    witnesses=st.none() | st.integers(0, 3),
    transport=st.sampled_from(["udp", "tcp"]),
)
def test_what_is_written_is_read(
    client_managers: int, message_managers: int, channels: int, witnesses: int | None, transport: str
) -> None:
    if complaint_about_votes(message_managers, witnesses or 0):
        return
    spec = a_cluster(
        client_managers=client_managers,
        message_managers=message_managers,
        channels=channels,
        witnesses=witnesses,
        transport=transport,
    )
    assert read(write(spec)) == spec
    assert digest(read(write(spec))) == digest(spec)


def test_unusual_settings_are_written_and_read() -> None:
    spec = replace(
        SPEC,
        key_file='a "key"\\\n\x7f é',
        bus={"heartbeat_ms": 20, "checkpoint_entries": 500},
        journal={"segment_bytes": 1 << 20},
        nodes=(replace(SPEC.nodes[0], interface="10.0.0.1"), *SPEC.nodes[1:]),
    )
    assert read(write(spec)) == spec
    assert spec.group_config("a").heartbeat_ms == 20


@pytest.mark.parametrize("mode", TlsMode)
def test_the_files_of_tls_are_written_and_read(mode: TlsMode) -> None:
    spec = replace(SPEC, tls=mode)
    assert read(write(spec)) == spec
    named = replace(SPEC.nodes[0], tls_certificate="/etc/ssl/one.pem", tls_key="/etc/ssl/one.key")
    moved = replace(spec, tls_client_ca="/etc/ssl/ca.pem", nodes=(named, *SPEC.nodes[1:]))
    assert read(write(moved)) == moved
    # Every client manager speaks TLS or none; where the files are is the business of each machine.
    assert digest(moved) == digest(spec)
    assert (digest(spec) == digest(SPEC)) is (mode is TlsMode.OFF)


def test_a_cluster_without_tls_does_not_mention_it() -> None:
    assert "tls" not in TEXT.partition("\n\n")[2]
    assert SPEC.url == "antiphon://127.0.0.1:7420,127.0.0.1:7421"
    assert replace(SPEC, tls=TlsMode.ON).url == "antiphons://127.0.0.1:7420,127.0.0.1:7421"


def with_key(table: str, key: str, value: str) -> str:
    """The file with another value for one key, or without the key if the value is empty."""
    before, head, inside = TEXT.partition(f"[{table}]\n") if table else ("", "", TEXT)
    changed, count = re.subn(
        rf"^{key} = .*$", f"{key} = {value}" if value else "", inside, count=1, flags=re.MULTILINE
    )
    assert count == 1
    return before + head + changed


@pytest.mark.parametrize(
    ("table", "key", "value", "complaint"),
    [
        ("", "version", "2", "version: this is version 2, and this program reads version 1"),
        ("", "name", "5", "name: a text is needed, and this is a whole number"),
        ("", "hops", "true", "hops: a whole number is needed, and this is true or false"),
        ("", "hops", "1979-05-27", "hops: a whole number is needed, and this is a date"),
        ("", "hops", "0", "hops: 0 is not between 1 and 255"),
        ("", "transport", "", "transport: is missing"),
        ("", "transport", '"ipx"', "transport: 'ipx' is none of udp, tcp"),
        ("", "cluster_id", '"00ff"', "cluster_id: '00ff' is not 32 lower-case hex digits"),
        ("", "key_file", '""', "key_file: is empty"),
        ("channels.a", "min_copies", "3", "channels.a.min_copies: 3 is not between 0 and 2"),
        ("channels.a.multicast", "data", '"10.1.1.1:5"', "channels.a.multicast.data: 10.1.1.1 is no"),
        ("channels.a.multicast", "data", "", "channels.a.multicast.data: is missing"),
        ("nodes.cm-2", "number", "1", "nodes.cm-2.number: the number 1 is also that of nodes.cm-1.number"),
        ("nodes.cm-2", "number", "0", "nodes.cm-2.number: 0 is not between 1 and 65535"),
        ("nodes.cm-2", "listen", '"127.0.0.1:7420"', "nodes.cm-2.listen: the port 127.0.0.1:7420 is"),
        ("nodes.cm-2", "listen", '"127.0.0.1"', "nodes.cm-2.listen: '127.0.0.1' is not of the form"),
        ("nodes.cm-2", "listen", '"h:77421"', "nodes.cm-2.listen: 'h:77421' is not of the form host:port"),
        ("nodes.cm-2.bus", "a", "70000", "nodes.cm-2.bus.a: 70000 is not between 1 and 65535"),
        ("nodes.cm-2.bus", "a", "20001", "nodes.cm-2.bus.a: the port 127.0.0.1:20001 is also that of"),
        ("nodes.cm-2.bus", "a", "", "nodes.cm-2.bus.a: is missing: the node takes part in this channel"),
        ("nodes.cm-2.bus", "a", "5\nb = 6", "nodes.cm-2.bus.b: the node has no part in such a channel"),
        ("nodes.mm-a-1", "channel", '"b"', "nodes.mm-a-1.channel: there is no channel 'b'"),
        ("nodes.mm-a-2", "rank", "1", "channels.a: its message managers have ranks [1, 1], not 1 to 2"),
        ("nodes.mm-a-2", "rank", "", "nodes.mm-a-2.rank: is missing"),
        ("nodes.mm-a-2", "rank", "2\nlisten = 3", "nodes.mm-a-2.listen: there is no such key of a message-"),
        ("nodes.w-a-1", "role", '"wittness"', "nodes.w-a-1.role: 'wittness' is none of client-manager, "),
        ("nodes.w-a-1", "disk_id", f'"{SPEC.nodes[2].disk_id.hex()}"', "nodes.w-a-1.disk_id: the disk id 01"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_told_with_its_key(
    table: str, key: str, value: str, complaint: str
) -> None:
    with pytest.raises(NodeError) as caught:
        read(with_key(table, key, value))
    assert caught.value.text.startswith(f"cluster.toml: {complaint}")
    assert "\n" not in caught.value.text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("version = 1", "version = ", "cluster.toml is no TOML: "),
        ("[nodes.cm-2]", "[nodes.cm-1]", "cluster.toml is no TOML: Cannot declare ('nodes', 'cm-1') twice"),
        ("name = ", 'tls = "yes"\nname = ', "cluster.toml: tls: 'yes' is none of off, on, mutual"),
        ("name = ", "tls = true\nname = ", "cluster.toml: tls: a text is needed, and this is true or false"),
        ("rank = 1", "rank = 1\ntls_key = 'x'", "cluster.toml: nodes.mm-a-1.tls_key: there is no such key"),
        ("name = ", "nmae = ", "cluster.toml: nmae: there is no such key; did you mean name?"),
        ("nodes.cm-2", 'nodes."c.m"', "cluster.toml: nodes.c.m: 'c.m' is no name: letters"),
        ("[nodes.cm-1]", "[bus]\nheartbeat = 5\n[nodes.cm-1]", "cluster.toml: bus.heartbeat: there is no"),
        ("[nodes.cm-1]", "[bus]\nwindow_entries = 0\n[nodes.cm-1]", "cluster.toml: channels.a: this cannot"),
        ("[nodes.cm-1]", "[journal]\nsegment_bytes = 9\n[nodes.cm-1]", "cluster.toml: journal: this cannot"),
        ("[nodes.cm-1]", "[journal]\nsegments = 0\n[nodes.cm-1]", "cluster.toml: journal.segments: there is"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_told(old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    with pytest.raises(NodeError) as caught:
        read(TEXT.replace(old, new))
    assert caught.value.text.startswith(complaint)


def test_a_cluster_without_channels_or_client_managers_is_none() -> None:
    head = TEXT.partition("[channels")[0]
    with pytest.raises(NodeError, match="channels: a cluster has at least one channel"):
        read(head)
    alone = replace(SPEC, nodes=tuple(one for one in SPEC.nodes if one.has_disk))
    with pytest.raises(NodeError, match="nodes: a cluster has at least one client manager"):
        read(write(alone))
    empty = replace(SPEC, nodes=tuple(SPEC.client_managers))
    with pytest.raises(NodeError, match=r"channels\.a: no message manager has this channel"):
        read(write(empty))


def test_witnesses_that_make_the_votes_even_are_refused() -> None:
    witness = SPEC.node("w-a-1")
    another = replace(witness, name="w-a-2", number=9, disk_id=b"another disk id!", bus={"a": 9})
    with pytest.raises(NodeError, match=r"channels\.a: 2 message managers with 2 witnesses give"):
        read(write(replace(SPEC, nodes=(*SPEC.nodes, another))))


def test_a_datagram_port_may_have_the_number_of_a_client_port_and_a_stream_may_not() -> None:
    nodes = (replace(SPEC.nodes[0], bus={"a": 7420}), *SPEC.nodes[1:])
    assert read(write(replace(SPEC, nodes=nodes))).nodes == nodes
    with pytest.raises(NodeError, match=r"nodes\.cm-1\.listen: the port 127\.0\.0\.1:7420 is also that of"):
        read(write(replace(SPEC, nodes=nodes, transport="tcp", channels=a_cluster(transport="tcp").channels)))


def test_the_order_of_a_file_and_its_remarks_mean_nothing() -> None:
    tables = re.split(r"^(?=\[)", TEXT, flags=re.MULTILINE)
    shuffled = tables[0] + "# a remark\n" + "".join(reversed(tables[1:]))
    assert read(shuffled) == SPEC
    assert digest(read(shuffled)) == digest(SPEC)


def test_the_digest_counts_what_must_agree_and_only_that() -> None:
    elsewhere = tuple(replace(one, data="/var/lib/other") if one.has_disk else one for one in SPEC.nodes)
    assert digest(replace(SPEC, key_file="other.key", nodes=elsewhere)) == digest(SPEC)
    changed = replace(SPEC, hops=2, nodes=(replace(SPEC.nodes[0], host="10.1.1.1"), *SPEC.nodes[1:]))
    assert digest(changed) != digest(SPEC)
    ours, theirs = essential_keys(SPEC), essential_keys(changed)
    assert [path for path in ours if ours[path] != theirs[path]] == ["hops", "nodes.cm-1.host"]
