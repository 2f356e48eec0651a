"""Sealed datagrams: what was sealed can be opened, by whom it is meant for, as what it was meant."""

from __future__ import annotations

import pytest

from antiphon.transport.keys import GroupKeys
from antiphon.transport.sealing import (
    HEAD,
    OVERHEAD_BYTES,
    RUN_ID_AT,
    UNICAST,
    Opener,
    Sealer,
    claimed_sender,
    run_key,
    talk_of,
)
from tests.unit.transport.links import CLUSTER, KEYS, run_id

RUN = run_id(1)


def sealed(body: bytes, *, stream: int = 0, keys: GroupKeys = KEYS) -> bytes:
    return b"".join(Sealer(keys, CLUSTER, 1, RUN).stream(stream).seal(body))


def test_a_sealed_body_is_opened() -> None:
    datagram = sealed(b"a body")
    assert b"a body" not in datagram
    assert len(datagram) == len(b"a body") + OVERHEAD_BYTES
    assert Opener(CLUSTER, 1, RUN).open(KEYS, 1, datagram) == b"a body"


@pytest.mark.parametrize("at", [*range(HEAD.size), HEAD.size, -16, -1])
def test_whatever_byte_is_changed_it_does_not_open(at: int) -> None:
    spoilt = bytearray(sealed(b"a body"))
    spoilt[at] ^= 1
    assert Opener(CLUSTER, 1, RUN).open(KEYS, 1, spoilt) is None


@pytest.mark.parametrize(
    ("cluster_id", "sender", "run"),
    [(b"another cluster.", 1, RUN), (CLUSTER, 2, RUN), (CLUSTER, 1, run_id(1, 2))],
)
def test_each_run_of_each_sender_of_each_cluster_has_its_own_key(
    cluster_id: bytes, sender: int, run: bytes
) -> None:
    group_key = KEYS.by_id[1]
    assert run_key(group_key, cluster_id, 1, sender, run) != run_key(group_key, CLUSTER, 1, 1, RUN)
    assert Opener(cluster_id, sender, run).open(KEYS, 1, sealed(b"a body")) is None


def test_a_key_id_is_part_of_the_key() -> None:
    assert run_key(b"k" * 32, CLUSTER, 1, 1, RUN) != run_key(b"k" * 32, CLUSTER, 2, 1, RUN)


def test_no_nonce_is_used_twice() -> None:
    sealer = Sealer(KEYS, CLUSTER, 1, RUN)
    streams = [sealer.stream(0), sealer.stream(1), sealer.stream(UNICAST + 2)]
    nonces = [stream.seal(b"the same")[0][-12:] for stream in streams for _ in range(5)]
    assert len(set(nonces)) == len(nonces)
    with pytest.raises(AssertionError, match="begun twice"):
        sealer.stream(1)


def test_a_stream_counts_from_zero() -> None:
    stream = Sealer(KEYS, CLUSTER, 1, RUN).stream(7)
    heads = [HEAD.unpack(stream.seal(b"x")[0]) for _ in range(3)]
    assert [(head[-2], head[-1]) for head in heads] == [(7, 0), (7, 1), (7, 2)]


def test_the_sender_can_be_read_from_outside() -> None:
    assert claimed_sender(b"".join(Sealer(KEYS, CLUSTER, 513, RUN).stream(0).seal(b"x"))) == 513


def test_the_run_id_lies_where_the_kernel_looks_for_it() -> None:
    assert sealed(b"x")[RUN_ID_AT : RUN_ID_AT + 16] == RUN


def test_while_a_key_is_being_changed_both_are_opened_and_counters_go_on() -> None:
    both = GroupKeys.of([(2, b"n" * 32), (1, KEYS.by_id[1])])
    sealer = Sealer(KEYS, CLUSTER, 1, RUN)
    stream = sealer.stream(0)
    old = b"".join(stream.seal(b"old"))
    sealer.use(both)
    new = b"".join(stream.seal(b"new"))
    opener = Opener(CLUSTER, 1, RUN)
    assert opener.open(both, 1, old) == b"old"
    assert opener.open(both, 2, new) == b"new"
    assert HEAD.unpack_from(new)[-1] == 1


def test_a_key_that_was_taken_away_opens_nothing() -> None:
    opener = Opener(CLUSTER, 1, RUN)
    assert opener.open(KEYS, 1, sealed(b"x")) == b"x"
    opener.forget()
    assert opener.open(GroupKeys.of([(2, b"n" * 32)]), 1, sealed(b"x")) is None


def test_talk_has_streams_of_its_own() -> None:
    streams = [0, 1, 2, *(UNICAST + node for node in (0, 1, 0xFFFF))]
    talks = [talk_of(stream) for stream in streams]
    assert len({*streams, *talks}) == 2 * len(streams)
