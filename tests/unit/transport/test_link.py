"""Links of a few members, step by step: what arrives, what is repaired, and what is not believed."""

from __future__ import annotations

import pytest

from antiphon.transport.interface import NOBODY
from antiphon.transport.keys import GroupKeys
from antiphon.transport.packing import ASK
from antiphon.transport.sealing import HEAD, LANE, UNICAST, UNICAST_TALK, Sealer
from antiphon.wire.lanes import Lane
from tests.unit.transport.links import (
    CLUSTER,
    KEYS,
    Network,
    run_id,
    settings_of,
    three,
    two,
)

DATA, CONTROL = LANE + Lane.DATA, LANE + Lane.CONTROL


def numbers(datagram: bytes) -> tuple[int, int]:
    """Stream and counter."""
    head = HEAD.unpack_from(datagram)
    return head[-2], head[-1]


# -- frames ----------------------------------------------------------------------------------------


def test_what_is_said_to_one_reaches_that_one() -> None:
    network = three()
    network.say(1, UNICAST + 2, b"for two")
    network.settle()
    assert network.heard(2) == [b"for two"]
    assert network.heard(3) == network.heard(1) == []
    assert network.frames[2][0].sender == 1
    assert network.frames[2][0].run_id == run_id(1)


def test_what_is_said_to_all_reaches_all_others() -> None:
    network = three()
    network.say(2, DATA, b"for all")
    network.settle()
    assert network.heard(1) == network.heard(3) == [b"for all"]
    assert network.heard(2) == []


def test_a_lane_is_heard_by_those_who_listen_to_it() -> None:
    lanes = {3: frozenset({Lane.CONTROL})}
    network = Network(*(settings_of(node, lanes=lanes) for node in (1, 2, 3)))
    network.settle()
    network.say(1, DATA, b"data")
    network.say(1, CONTROL, b"control")
    network.settle()
    assert network.heard(2) == [b"data", b"control"]
    assert network.heard(3) == [b"control"]


@pytest.mark.parametrize("size", [0, 1, 1_331, 1_332, 100_000])
def test_frames_of_any_size_arrive_whole(size: int) -> None:
    network = two()
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    network.say(1, UNICAST + 2, frame)
    network.settle()
    assert network.heard(2) == [frame]


def test_frames_of_one_step_share_a_datagram() -> None:
    network = two()
    before = len(network.carried)
    for number in range(10):
        network.say(1, DATA, b"%d" % number)
    network.settle()
    assert len(network.carried) == before + 1
    assert network.heard(2) == [b"%d" % number for number in range(10)]


# -- proving that one is alive ---------------------------------------------------------------------


def test_nothing_is_taken_from_a_run_before_it_has_proved_itself() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    network.loses = lambda sender, receiver, datagram: receiver == 1  # no challenge gets through
    network.say(1, UNICAST + 2, b"early")
    network.settle()
    assert network.heard(2) == []
    network.loses = lambda sender, receiver, datagram: False
    network.passes(ms=100)
    assert network.heard(2) == [b"early"], "it was held, and is believed now"


def test_a_recorded_run_proves_nothing() -> None:
    network = two()
    network.say(1, UNICAST + 2, b"once")
    network.settle()
    recorded = [datagram for sender, _, datagram in network.carried if sender == 1]
    # Everybody starts anew, and somebody plays back the whole former life of member 1.
    network.join(settings_of(1, members=2, life=2))
    network.join(settings_of(2, members=2, life=2))
    network.settle()
    for datagram in recorded:
        network.links[2].receive(network.now_ns, datagram)
    network.passes(ms=10_000)
    assert network.heard(2) == []
    assert network.links[2].counters[1].unproven == 1
    assert ["proved nothing" in line for line in network.log] == [True]
    network.say(1, UNICAST + 2, b"the living one")
    network.settle()
    assert network.heard(2) == [b"the living one"]


def test_a_flood_of_recordings_does_not_keep_out_a_new_run() -> None:
    network = two()
    lives = [Sealer(KEYS, CLUSTER, 1, run_id(1, life)) for life in range(10, 20)]
    recorded = [b"".join(sealer.stream(UNICAST + 2).seal(b"\1\0\0\0\0")) for sealer in lives]

    waves = 50

    def floods(sender: int, receiver: int, datagram: bytes) -> bool:
        nonlocal waves
        if receiver == 2 and waves:
            waves -= 1
            for old in recorded:
                network.links[2].receive(network.now_ns, old)
        return False

    network.loses = floods
    network.join(settings_of(1, members=2, life=2))
    network.say(1, UNICAST + 2, b"new")
    network.passes(ms=200)
    network.say(1, UNICAST + 2, b"newer")
    network.settle()
    assert b"newer" in network.heard(2)
    assert {arrived.run_id for arrived in network.frames[2]} == {run_id(1, 2)}


def test_when_a_newer_run_is_known_the_older_is_over() -> None:
    network = two()
    former = network.links[1]
    network.join(settings_of(1, members=2, life=2))
    network.settle()
    former.send(UNICAST + 2, [b"a late word of the former life"])
    for _, datagram in former.flush(network.now_ns):
        network.links[2].receive(network.now_ns, datagram.head + datagram.rest)
    network.passes(ms=100)
    assert network.heard(2) == []
    assert network.links[2].counters[1].replays == 1


def test_a_member_that_restarts_is_heard_and_hears() -> None:
    network = two()
    network.join(settings_of(2, members=2, life=2))
    network.settle()
    network.say(1, UNICAST + 2, b"to the new one")
    network.say(2, UNICAST + 1, b"from the new one")
    network.settle()
    assert b"to the new one" in network.heard(2)
    assert network.heard(1) == [b"from the new one"]


# -- repairing -------------------------------------------------------------------------------------


def lose_once(network: Network, stream: int, *counters: int, receivers: tuple[int, ...] = (2, 3)) -> None:
    lost: set[tuple[int, int]] = set()

    def loses(sender: int, receiver: int, datagram: bytes) -> bool:
        at = numbers(datagram)
        key = (receiver, at[1])
        if at[0] == stream and at[1] in counters and receiver in receivers and key not in lost:
            lost.add(key)
            return True
        return False

    network.loses = loses


def say_apart(network: Network, node: int, stream: int, count: int) -> list[bytes]:
    """Frames in datagrams of their own."""
    frames = [b"frame %d" % number for number in range(count)]
    for frame in frames:
        network.say(node, stream, frame)
        network.settle()
    return frames


@pytest.mark.parametrize("stream", [DATA, UNICAST + 2])
def test_what_is_lost_in_the_middle_is_asked_for_and_comes(stream: int) -> None:
    network = two()
    lose_once(network, stream, 1, 2)
    frames = say_apart(network, 1, stream, 4)
    assert network.heard(2) == [frames[0], frames[3]]
    network.passes(ms=20)
    assert sorted(network.heard(2)) == frames
    assert network.links[2].counters[1].repairs_asked == 2
    assert network.links[1].counters[2].repairs_given == 2


@pytest.mark.parametrize("stream", [DATA, UNICAST + 2])
def test_the_loss_of_the_last_one_is_noticed_too(stream: int) -> None:
    network = two()
    lose_once(network, stream, 2)
    frames = say_apart(network, 1, stream, 3)
    network.passes(ms=100)
    assert network.heard(2) == frames


@pytest.mark.parametrize("stream", [DATA, UNICAST + 2])
def test_how_far_a_stream_is_is_said_when_it_falls_silent_and_not_before(stream: int) -> None:
    network = two()
    network.passes(ms=2_000)
    talk = [0]
    for number in range(20):
        network.say(1, stream, b"%d" % number)
        network.passes(ms=10)
        talk.append(network.links[1].counters[2 if stream >= UNICAST else 1].datagrams_sent - number - 1)
    assert len(set(talk[1:])) <= 2, "somebody who speaks need not say how far it is; once a second it may"
    said = len(network.carried)
    network.passes(ms=25)
    assert any(sender == 1 and to == stream for sender, to, _ in network.carried[said:])


def test_how_far_a_stream_is_is_said_every_second_while_it_can_be_had_and_then_every_four() -> None:
    network = two()
    network.say(1, UNICAST + 2, b"the last for long")

    def words_in(ms: int) -> int:
        before = len(network.carried)
        network.passes(ms)
        return sum(sender == 1 for sender, _, _ in network.carried[before:])

    words_in(1_500)
    assert words_in(1_000) == 1, "it may have been lost, and can still be given again"
    words_in(10_000)
    assert words_in(40_000) == 10, "what was never asked for is gone; only a sign of life is due"
    network.say(1, UNICAST + 2, b"one more")
    assert words_in(100) >= 3, "itself, and soon after it how far the stream is"


@pytest.mark.parametrize("stream", [DATA, UNICAST + 2])
def test_how_far_a_stream_is_is_not_said_for_periodic_frames(stream: int) -> None:
    network = two()
    network.passes(ms=20_000)
    before = len(network.carried)
    for number in range(80):
        network.say(1, stream, b"%d" % number, is_periodic=True)
        network.passes(ms=50)
    sent = [to for sender, to, _ in network.carried[before:] if sender == 1]
    assert len(sent) <= 80 + 1, "a sign of life every four seconds"
    assert len(network.links[1]._streams[stream].store or ()) <= 3_000 // 50, "and they are kept for a time"


@pytest.mark.parametrize("stream", [DATA, UNICAST + 2])
def test_a_periodic_frame_does_not_delay_the_news_of_a_loss(stream: int) -> None:
    network = two()
    lose_once(network, stream, 0, 1, 2)
    network.say(1, stream, b"lost")
    network.passes(ms=10)
    network.say(1, stream, b"periodic", is_periodic=True)
    network.passes(ms=5)
    network.say(1, stream, b"periodic, too", is_periodic=True)
    network.passes(ms=15)
    assert b"lost" in network.heard(2)


def test_over_streams_that_lose_nothing_a_sign_of_life_comes_every_second() -> None:
    network = Network(*(settings_of(node, members=2) for node in (1, 2)), is_repairing=False)
    network.passes(10_000)
    before = len(network.carried)
    network.passes(10_000)
    assert sum(sender == 1 for sender, _, _ in network.carried[before:]) == 10


def test_the_loss_of_a_runs_very_first_is_noticed_too() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    lose_once(network, DATA, 0)
    frames = say_apart(network, 1, DATA, 2)
    network.passes(ms=100)
    assert sorted(network.heard(2)) == frames


def test_what_several_lack_one_asks_for_and_all_get() -> None:
    network = three()
    lose_once(network, DATA, 0)
    frames = say_apart(network, 1, DATA, 2)
    network.passes(ms=50)
    assert sorted(network.heard(2)) == sorted(network.heard(3)) == frames
    asked = [network.links[node].counters[1].repairs_asked for node in (2, 3)]
    assert sorted(asked) == [0, 1]
    given = sum(network.links[1].counters[node].repairs_given for node in (2, 3))
    assert given == 1


def test_who_does_not_listen_to_a_lane_is_asked_in_private() -> None:
    lanes = {1: frozenset({Lane.CONTROL})}
    network = Network(*(settings_of(node, lanes=lanes) for node in (1, 2, 3)))
    network.settle()
    lose_once(network, DATA, 0)
    frames = say_apart(network, 1, DATA, 2)
    network.passes(ms=100)
    assert sorted(network.heard(2)) == sorted(network.heard(3)) == frames


def test_a_repair_is_the_datagram_that_was_lost() -> None:
    network = two()
    lose_once(network, DATA, 0)
    say_apart(network, 1, DATA, 2)
    network.passes(ms=50)
    first = [datagram for sender, _, datagram in network.carried if numbers(datagram) == (DATA, 0)]
    assert len(first) == 2
    assert first[0] == first[1], "with the same nonce it must be the same bytes"


def test_what_never_comes_is_given_up_and_counted() -> None:
    network = two(give_up_ms=500)
    network.loses = lambda sender, receiver, datagram: numbers(datagram) == (DATA, 1)
    frames = say_apart(network, 1, DATA, 3)
    network.passes(ms=600)
    assert network.heard(2) == [frames[0], frames[2]]
    assert network.links[2].read_counters()[1].gave_up == 1
    asked = network.links[2].counters[1].repairs_asked
    network.passes(ms=5_000)
    assert network.links[2].counters[1].repairs_asked == asked


def test_a_frame_whose_part_never_comes_is_let_go() -> None:
    network = two(give_up_ms=500)
    network.loses = lambda sender, receiver, datagram: numbers(datagram) == (DATA, 1)
    network.say(1, DATA, b"x" * 5_000)
    network.passes(ms=3_000)
    assert network.heard(2) == []
    assert network.links[2].read_counters()[1].gave_up == 2, "a datagram, and with it the frame"
    run = network.links[2]._members[1].current
    assert run is not None and not run.assembler


def test_what_was_lost_together_with_all_that_told_of_it_is_given_up_in_the_end() -> None:
    network = two(give_up_ms=500)
    network.loses = lambda sender, receiver, datagram: True
    say_apart(network, 1, DATA, 70)
    network.passes(ms=5_000)
    network.loses = lambda sender, receiver, datagram: False
    network.passes(ms=2_000)
    assert network.heard(2) == []
    assert network.links[2].read_counters()[1].gave_up == 70


def test_who_has_just_been_proved_alive_has_said_how_far_it_is() -> None:
    network = Network(settings_of(1, members=2))
    network.settle()  # its greeting reaches nobody
    network.join(settings_of(2, members=2))
    network.settle()
    run = network.links[2]._members[1].current
    assert run is not None
    assert {stream: known.window.next for stream, known in run.streams.items() if known.gaps is not None} == {
        DATA: 0,
        CONTROL: 0,
        LANE + Lane.DELIVERIES: 0,
        UNICAST + 2: 0,
    }


def test_of_a_lane_in_use_nothing_is_said_beside_it() -> None:
    network = two()
    network.loses = lambda sender, receiver, datagram: numbers(datagram)[0] < UNICAST  # the lane is slow
    say_apart(network, 1, DATA, 3)
    network.passes(ms=1_000)
    assert network.links[2].counters[1].repairs_asked == 0


def test_what_the_sender_has_no_more_is_not_waited_for() -> None:
    network = two(repair_bytes_max=2_000)
    lose_once(network, DATA, *range(5))
    for _ in range(10):
        network.say(1, DATA, b"x" * 1_000)
        network.settle()
    network.passes(ms=100)
    assert network.links[2].read_counters()[1].gave_up == 5
    assert len(network.heard(2)) == 5


def test_who_comes_late_asks_for_the_last_few_only() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    network.settle()
    say_apart(network, 1, DATA, 200)
    network.join(settings_of(2, members=2, life=2))
    network.settle()
    network.say(1, DATA, b"now")
    network.passes(ms=200)
    assert b"now" in network.heard(2)
    assert 0 < len(network.heard(2)) <= 65


def test_when_nothing_is_said_little_is_sent() -> None:
    network = three()
    say_apart(network, 1, DATA, 1)
    network.passes(ms=10_000)
    before = len(network.carried)
    network.passes(ms=10_000)
    # Once a second each member tells each other that it is there.
    assert len(network.carried) - before <= 6 * 11


def test_over_streams_nothing_is_asked_for() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2), is_repairing=False)
    network.settle()
    lose_once(network, DATA, 0)
    frames = say_apart(network, 1, DATA, 2)
    network.passes(ms=5_000)
    assert network.heard(2) == frames[1:]
    assert network.links[2].read_counters()[1].gave_up == 0


# -- what is not believed --------------------------------------------------------------------------


def test_a_datagram_counts_once() -> None:
    network = two()
    say_apart(network, 1, DATA, 1)
    _, _, datagram = network.carried[-1]
    for _ in range(5):
        assert network.links[2].receive(network.now_ns, datagram) is None
    network.settle()
    assert network.heard(2) == [b"frame 0"]
    assert network.links[2].counters[1].replays == 5
    assert network.log == [], "what is repaired for others comes again, too"


def test_a_process_that_was_killed_and_started_again_is_nothing_for_the_log() -> None:
    network = three()
    last = say_apart(network, 1, DATA, 1) and network.carried[-1][2]
    network.join(settings_of(1, life=2))
    network.settle()
    # What the former process said last lay in a socket meanwhile.
    network.links[2].receive(network.now_ns, last)
    # The third process ends before it has answered anybody.
    network.loses = lambda sender, receiver, datagram: receiver == 1
    network.join(settings_of(1, life=3))
    network.say(1, DATA, b"the third")
    network.passes(ms=100)
    network.loses = lambda sender, receiver, datagram: False
    network.join(settings_of(1, life=4))
    network.passes(ms=20_000)
    assert network.links[2].counters[1].replays == network.links[2].counters[1].unproven == 1
    assert network.log == []


def test_a_recording_of_a_run_that_ended_long_ago_is_told_once() -> None:
    network = two()
    say_apart(network, 1, DATA, 1)
    recorded = network.carried[-1][2]
    network.join(settings_of(1, members=2, life=2))
    network.passes(ms=60_000)
    for _ in range(3):
        assert network.links[2].receive(network.now_ns, recorded) is None
    assert network.links[2].counters[1].replays == 3
    assert ["plays back a recording" in line for line in network.log] == [True]
    assert "member 1" in network.log[0]


def test_strangers_are_counted_and_logged_once() -> None:
    network = two()
    link = network.links[2]
    other_cluster = Sealer(KEYS, b"another cluster.", 1, run_id(1, 9)).stream(DATA)
    other_key = Sealer(GroupKeys.of([(1, b"?" * 32)]), CLUSTER, 1, run_id(1, 9)).stream(DATA)
    other_key_id = Sealer(GroupKeys.of([(9, b"?" * 32)]), CLUSTER, 1, run_id(1)).stream(DATA)
    no_member = Sealer(KEYS, CLUSTER, 77, run_id(7)).stream(DATA)
    for _ in range(3):
        for stream in (other_cluster, other_key, other_key_id, no_member):
            assert link.receive(network.now_ns, b"".join(stream.seal(b"\1\1\0\0\0x"))) is None
        assert link.receive(network.now_ns, b"") is None
        assert link.receive(network.now_ns, b"\0" * 2_000) is None
    assert link.counters[NOBODY].other_cluster == 3
    assert link.counters[1].wrong_key == 6
    assert link.counters[NOBODY].garbage == 9
    assert len(network.log) == 4
    say_apart(network, 1, DATA, 2)
    assert network.heard(2) == [b"frame 0", b"frame 1"]


def test_two_members_of_one_number_are_noticed() -> None:
    network = two()
    twin = Sealer(KEYS, CLUSTER, 2, run_id(2, 9)).stream(DATA)
    network.links[2].receive(network.now_ns, b"".join(twin.seal(b"\1")))
    assert "are there two of us?" in network.log[0]


def test_what_is_for_another_member_is_not_ours() -> None:
    network = three()
    network.loses = lambda sender, receiver, datagram: True
    network.say(1, UNICAST + 3, b"for three")
    network.settle()
    _, _, datagram = network.carried[-1]
    assert network.links[2].receive(network.now_ns, datagram) is None
    network.settle()
    assert network.heard(2) == []


@pytest.mark.parametrize("body", [b"\0", b"\x63", b"\1\1", b"\2", bytes([ASK]), b"\5short", b"\3rows"])
def test_a_member_that_makes_no_sense_does_no_harm(body: bytes) -> None:
    network = two()
    talk = network.links[1]._streams[UNICAST + 2].talk
    assert talk.stream == UNICAST_TALK + 2
    assert network.links[2].receive(network.now_ns, b"".join(talk.seal(body))) is None
    assert network.links[2].counters[1].garbage == 1
    say_apart(network, 1, DATA, 1)
    assert network.heard(2) == [b"frame 0"]


def test_a_key_is_changed_without_a_stop() -> None:
    new = (2, b"n" * 32)
    old = (1, KEYS.by_id[1])
    network = two()
    said: list[bytes] = []
    for keys in ([old, new], [new, old], [new]):
        for node in (1, 2):
            network.links[node].use_keys(GroupKeys.of(keys))
            said.append(b"%d %d" % (node, len(said)))
            network.say(1, DATA, said[-1])
            network.settle()
    assert network.heard(2) == said
    assert network.links[2].counters[1].wrong_key == 0


def test_a_key_that_was_taken_away_is_a_wrong_key() -> None:
    network = two()
    network.links[2].use_keys(GroupKeys.of([(2, b"n" * 32)]))
    say_apart(network, 1, DATA, 1)
    assert network.heard(2) == []
    assert network.links[2].counters[1].wrong_key > 0


def test_what_is_held_for_a_run_that_proves_nothing_is_bounded() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    network.loses = lambda sender, receiver, datagram: receiver == 1  # no challenge gets through
    for _ in range(100):
        network.say(1, DATA, b"x" * 1_000_000)
        network.settle()
    unproven = network.links[2]._members[1].unproven[run_id(1)]
    assert unproven.held_bytes + unproven.assembler.bytes < 10_000_000
    network.passes(ms=60_000)
    assert network.links[2]._members[1].unproven, "it still says that it is there"
    network.loses = lambda sender, receiver, datagram: True
    network.passes(ms=60_000)
    assert not network.links[2]._members[1].unproven


def test_a_run_that_has_said_too_much_can_still_prove_itself() -> None:
    network = Network(settings_of(1, members=2), settings_of(2, members=2))
    network.loses = lambda sender, receiver, datagram: receiver == 1
    for _ in range(10):
        network.say(1, DATA, b"x" * 1_000_000)
        network.settle()
    network.loses = lambda sender, receiver, datagram: False
    network.passes(ms=1_000)
    assert len(network.heard(2)) >= 8
    network.say(1, DATA, b"and on")
    network.passes(ms=1_000)
    assert b"and on" in network.heard(2)
