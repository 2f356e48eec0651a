"""The transport's machines against what they promise, under any loss, doubling and disorder."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import LocalError, NodeError, ProtocolError
from antiphon.transport import packing as p
from antiphon.transport.faults import FaultRules
from antiphon.transport.keys import parse_keys
from antiphon.transport.packing import Assembler
from antiphon.transport.replay import ReplayWindow
from antiphon.transport.sealing import LANE, UNICAST
from antiphon.wire.lanes import Lane
from tests.unit.transport.links import Network, settings_of

frames = st.lists(st.binary(max_size=700), max_size=20)


@given(frames, st.integers(65, 300))
def test_what_is_packed_comes_out_whole_and_in_order(said: list[bytes], capacity: int) -> None:
    packer = p.Packer(capacity, 10_000)
    for frame in said:
        packer.add([frame[:5], frame[5:]])
    assembler = Assembler(bytes_max=1 << 20, frame_bytes_max=1 << 20, keep_ns=1)
    found: list[bytes] = []
    for number, body in enumerate(packer.take()):
        assert len(body) <= capacity
        if body[0] == p.FRAMES:
            found += [bytes(frame) for frame in p.unpack_frames(body)]
        else:
            index, count, piece = p.unpack_part(body)
            whole = assembler.add(0, (0, number - index), index, count, piece)
            found += [whole] if whole is not None else []
    assert found == said
    assert not assembler


@given(st.binary(max_size=200))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    for read in (p.unpack_frames, p.unpack_part, p.unpack_heads, p.unpack_ask, p.unpack_nonce):
        try:
            read(b"\0" + body)
        except ProtocolError:
            pass


@given(st.lists(st.integers(0, 60), max_size=200), st.integers(1, 20), st.integers(0, 10))
def test_a_replay_window_against_a_set(numbers: list[int], size: int, first: int) -> None:
    """A number is fresh if it was not taken, is not before the beginning, and not too far behind."""
    window: ReplayWindow[None] = ReplayWindow(first, size)
    taken: set[int] = set()
    head = first
    for number in numbers:
        by_definition = number not in taken and number >= first and number >= head - size
        assert window.is_fresh(number) == by_definition
        if by_definition:
            window.take(number)
            taken.add(number)
            head = max(head, number + 1)
        assert window.next == head
        assert len(window.missing) <= size
        assert list(window.missing) == sorted(window.missing)
        lost = [number for number in range(first, head) if number not in taken]
        assert window.given_up == len([number for number in lost if number < head - size])


class Chaos:
    """A network that does with each datagram what the example draws."""

    def __init__(self, draw: st.DrawFn, network: Network) -> None:
        self._fates = draw(st.lists(st.sampled_from("....ldo"), min_size=5, max_size=60))
        self._network = network
        self._at = 0
        self._late: list[tuple[int, bytes]] = []
        network.loses = self.loses

    def loses(self, sender: int, receiver: int, datagram: bytes) -> bool:
        self._at += 1
        fate = self._fates[self._at % len(self._fates)]
        link = self._network.links[receiver]
        if fate == "d":
            link.receive(self._network.now_ns, datagram)
        elif fate == "o":
            self._late.append((receiver, datagram))
            return True
        late, self._late = self._late, []
        for whose, old in late:
            self._network.links[whose].receive(self._network.now_ns, old)
        return fate == "l"


STREAMS = [LANE + Lane.DATA, LANE + Lane.CONTROL, UNICAST + 2]


@st.composite
def chaotic_runs(draw: st.DrawFn) -> tuple[Network, list[tuple[int, bytes]]]:
    network = Network(*(settings_of(node, datagram_bytes=576) for node in (1, 2, 3)))
    network.settle()
    Chaos(draw, network)
    said: list[tuple[int, bytes]] = []
    for number, stream, size, pause_ms in draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(STREAMS), st.integers(0, 4_000), st.integers(0, 10)),
            max_size=15,
        )
    ):
        # Some frames are said twice: whoever says a thing twice is heard twice.
        frame = b"%d %d " % (number, stream) + bytes(size)
        network.say(1, stream, frame)
        said.append((stream, frame))
        network.passes(ms=pause_ms)
    return network, said


@given(chaotic_runs())
def test_every_frame_comes_out_once_and_whole_whatever_the_network_does(
    run: tuple[Network, list[tuple[int, bytes]]],
) -> None:
    network, said = run
    network.passes(ms=4_000)
    # The network heals, so that everybody learns at least what there was to be heard.
    network.loses = lambda sender, receiver, datagram: False
    network.passes(ms=4_000)
    for node in (2, 3):
        meant = Counter(frame for stream, frame in said if stream < UNICAST or stream == UNICAST + node)
        heard = Counter(network.heard(node))
        assert not heard - meant, "a frame came out that was not said, or more often than it was"
        if network.links[node].read_counters()[1].gave_up == 0:
            assert heard == meant
    run_of_one = network.links[2]._members[1].current
    assert run_of_one is None or all(
        not stream.window.missing for stream in run_of_one.streams.values() if stream.gaps is not None
    )


@given(chaotic_runs())
def test_after_the_storm_nothing_is_kept(run: tuple[Network, list[tuple[int, bytes]]]) -> None:
    network, _ = run
    network.passes(ms=10_000)
    for link in network.links.values():
        assert all(not out.store for out in link._streams.values())
        for member in link._members.values():
            assert member.current is None or not member.current.assembler


edits = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 255)), min_size=1, max_size=4)


@given(edits, st.integers(0, 200), st.binary(max_size=100))
def test_what_was_touched_on_its_way_does_no_harm(
    changes: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    """Neither random bytes nor a genuine datagram that is not quite what it was have any effect."""
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    network.settle()
    network.loses = lambda sender, receiver, datagram: True
    network.say(1, UNICAST + 2, b"a genuine word")
    network.settle()
    genuine = network.carried[-1][2]
    spoilt = bytearray(genuine)
    for at, by in changes:
        spoilt[at % len(spoilt)] ^= by
    for hostile in (bytes(spoilt), genuine[:cut], genuine + tail, tail):
        if hostile != genuine:
            assert network.links[2].receive(network.now_ns, hostile) is None
    network.settle()
    assert network.heard(2) == []
    network.links[2].receive(network.now_ns, genuine)
    network.settle()
    assert network.heard(2) == [b"a genuine word"]


@given(st.text(alphabet="01 >-*=;.dropcutsey#\n", max_size=60))
def test_fault_rules_are_read_or_refused(text: str) -> None:
    try:
        FaultRules.parse(text).between(1, 2)
    except LocalError:
        pass


@given(st.text(max_size=200))
def test_key_files_are_read_or_refused(text: str) -> None:
    with pytest.raises(NodeError):
        parse_keys(text)
