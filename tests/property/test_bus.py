"""Properties of the bus: codecs, the log against the obvious one, and recovery against memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.codec import Decoder, decode, encode
from antiphon.bus.commit_server import CommitServer, DurableEpochs
from antiphon.bus.effects import Append, Learned, OrderRecord, Received, RoleEvent, Synced
from antiphon.bus.entries import FenceDetail, OpenDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger, ProducerRow
from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason, ServerStatus, SpaceState
from antiphon.bus.ports import JournalCounter
from antiphon.bus.records import (
    BaseMoved,
    EntriesAppended,
    EntriesStaged,
    EpochStarted,
    decode_order,
    encode_order,
)
from antiphon.bus.recovery import recover
from antiphon.bus.reign import Reign
from antiphon.bus.schema import KINDS
from antiphon.errors import ProtocolError
from antiphon.ids import Mid, make_epoch
from antiphon.ranges import Ranges
from antiphon.wire import layout
from antiphon.wire.commands import Outcome, OutcomeCode
from tests.stage import MemoryPayloads
from tests.unit.bus.test_recovery import at, found

RUN = b"0123456789abcdef"

u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
u128 = st.integers(0, 2**128 - 1)
ids = st.binary(min_size=16, max_size=16)
texts = st.text(max_size=20)
mids = st.builds(Mid, u16, u64, u64)


@st.composite
def entry_lists(draw: st.DrawFn, start: int | None = None, most: int = 5) -> tuple[Entry, ...]:
    """Contiguous entries of any kind."""
    first = draw(st.integers(1, 2**63)) if start is None else start
    entries = []
    for _ in range(draw(st.integers(0, most))):
        count = draw(st.integers(1, 65_536))
        kind = draw(st.sampled_from(EntryKind))
        entries.append(
            Entry(first, count, kind, draw(mids), draw(u64), draw(ids), draw(st.binary(max_size=30)))
        )
        first += count
    return tuple(entries)


datas = st.builds(m.Data, mids, u64, u32, ids, st.binary(max_size=50))
items = st.builds(m.ReportItem, mids, u64, u32, ids, u32)
outcomes = st.builds(Outcome, u64, u32, st.sampled_from([int(code) for code in OutcomeCode]), u64, texts)
offsets = st.sets(st.integers(1, 65_535), max_size=5).map(lambda some: m.offsets_of([0, *sorted(some)]))
pieces = st.builds(
    m.Piece, u64, u32, u32, st.lists(st.binary(max_size=30), max_size=3), st.one_of(st.just(b""), offsets)
)
ranges = st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 99)), max_size=5).map(
    lambda pairs: Ranges((start, start + length) for start, length in pairs)
)
takers = st.lists(st.builds(m.Taker, u64, u64, u64), max_size=3).map(tuple)
targets = st.builds(m.Target, u16, u64, takers, u64)


def some(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(elements, max_size=3).map(tuple)


def field_of(annotation: Any) -> Any:
    return annotation.__metadata__[0]


# What may stand in a field, by its format.
by_format: dict[int, st.SearchStrategy[Any]] = {
    id(field_of(annotation)): values
    for annotation, values in [
        (layout.U16, u16),
        (layout.U32, u32),
        (layout.U64, u64),
        (layout.U128, u128),
        (layout.Bool, st.booleans()),
        (layout.Text, texts),
        (layout.Document, texts),
        (layout.Texts, some(texts)),
        (layout.U32s, some(u32)),
        (layout.U64s, some(u64)),
        (layout.Bytes, st.binary(max_size=50)),
        (layout.Bytes16, ids),
        (layout.View, st.binary(max_size=50)),
        (layout.SomeRanges, ranges),
        (m.MidField, mids),
        (m.Mids, some(mids)),
        (m.Outcomes, some(outcomes)),
        (m.EntriesField, entry_lists()),
        (m.Datas, some(datas)),
        (m.ReportItems, some(items)),
        (m.ReasonField, st.sampled_from(NackReason)),
        (m.SpaceField, st.sampled_from(SpaceState)),
        (m.StatusField, st.sampled_from(ServerStatus)),
        (m.AboutField, st.sampled_from(m.About)),
        (m.Places, some(st.builds(m.Place, u32, u32, u32, u64))),
        (m.Buffers, st.lists(st.binary(max_size=30), max_size=3)),
        (m.ConsumerCredits, some(st.builds(m.ConsumerCredit, u64, u64, u64, st.booleans()))),
        (m.Pieces, some(pieces)),
        (m.Targets, some(targets)),
    ]
}


def strategy_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    if kind is m.Data:
        return datas
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: by_format[id(field_of(hint))] for name, hint in hints.items()})


MESSAGES = tuple(KINDS)
messages = st.one_of([strategy_of(kind) for kind in MESSAGES])


def comparable(message: Any) -> Any:
    """A piece may be cut into buffers in any way; only their bytes count."""
    if isinstance(message, m.Data):
        return message
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    if "page" in values:
        values["page"] = b"".join(message.page)
    if "pieces" in values:
        values["pieces"] = [(*piece[:3], b"".join(piece.buffers), piece.offsets) for piece in message.pieces]
    return values


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type[Any]) -> None:
    # There are many kinds; together they get their share.
    @settings(max_examples=settings.default.max_examples // 4)
    @given(strategy_of(kind), texts, u32, u16, ids, ids)
    def comes_back(
        message: Any, group: str, config_id: int, sender: int, run_id: bytes, disk_id: bytes
    ) -> None:
        header, back = decode(encode(message, group, config_id, sender, run_id, disk_id))
        assert header == (group, config_id, sender, run_id, disk_id)
        assert type(back) is kind
        assert comparable(back) == comparable(message)

    comes_back()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        decode(data)
    except ProtocolError:
        pass


@given(messages, st.integers(0, 10_000), st.integers(0, 255), st.integers(-5, 5))
def test_a_message_with_a_wrong_byte_or_length_is_a_message_or_a_protocol_error(
    message: m.BusMessage, where: int, value: int, longer: int
) -> None:
    data = bytearray(encode(message, "main", 1, 1, RUN))
    data[where % len(data)] = value
    if longer < 0:
        del data[longer:]
    else:
        data += bytes(longer)
    try:
        decode(bytes(data))
    except ProtocolError:
        pass


@given(messages, messages, st.integers(0, 60), st.integers(0, 255), st.integers(-5, 5))
def test_who_remembers_headers_decodes_the_same(
    known: m.BusMessage, message: m.BusMessage, where: int, value: int, longer: int
) -> None:
    decoder = Decoder()
    decoder.decode(encode(known, "main", 1, 1, RUN))
    good = encode(message, "main", 1, 1, RUN)
    bad = bytearray(good)
    bad[where % len(bad)] = value
    for data in (good, bytes(bad), good[:longer] if longer < 0 else good + bytes(longer)):
        try:
            header, expected = decode(data)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decoder.decode(data)
        else:
            told, back = decoder.decode(memoryview(data))
            assert told == header and comparable(back) == comparable(expected)


# -- records ----------------------------------------------------------------------------------------

prevs = st.integers(0, 2**62)


@st.composite
def appended(draw: st.DrawFn, prev: int) -> EntriesAppended:
    """Entries, some of them with their envelopes."""
    entries = draw(entry_lists(prev + 1))
    indexes = st.integers(0, max(0, len(entries) - 1))
    envelopes = draw(st.lists(st.tuples(indexes, st.binary(max_size=40)), max_size=min(len(entries), 3)))
    return EntriesAppended(draw(u64), prev, entries, tuple(envelopes))


order_bodies = prevs.flatmap(
    lambda prev: st.one_of(
        appended(prev),
        st.builds(EntriesStaged, u64, st.just(prev), entry_lists(prev + 1)),
        st.builds(EpochStarted, u64, st.just(prev), entry_lists(prev + 1)),
        st.builds(BaseMoved, u64, u64, st.binary(max_size=40), ids),
    )
)


@given(order_bodies)
def test_every_order_record_comes_back_as_it_was(body: Any) -> None:
    assert decode_order(encode_order(body)) == body


@given(st.binary(max_size=200))
def test_any_bytes_are_an_order_record_or_a_protocol_error(data: bytes) -> None:
    try:
        decode_order(data)
    except ProtocolError:
        pass


@given(st.builds(StableDetail, u64, ids, st.lists(u16, max_size=5).map(tuple)))
def test_details_come_back_as_they_were(stable: StableDetail) -> None:
    assert StableDetail.decode(stable.encode()) == stable
    assert OpenDetail.decode(OpenDetail(7, stable.digest).encode()) == (7, stable.digest)
    assert FenceDetail.decode(FenceDetail(7, stable.n, 9).encode()) == (7, stable.n, 9)


rows = st.builds(ProducerRow, u64, u64, u64, u64, u64, ids)


@given(st.dictionaries(u16, rows, max_size=5), u64, u16)
def test_a_ledger_comes_back_as_it_was(table: dict[int, ProducerRow], term: int, primary: int) -> None:
    ledger = Ledger()
    ledger.rows, ledger.term, ledger.primary = table, term, primary
    back = Ledger.decode(ledger.encode())
    assert back.encode() == ledger.encode()
    assert (back.term, back.primary, sorted(back.rows)) == (term, primary, sorted(table))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_ledger_or_a_protocol_error(data: bytes) -> None:
    try:
        Ledger.decode(data)
    except ProtocolError:
        pass


# -- the log against the obvious one ----------------------------------------------------------------

counts = st.lists(st.integers(1, 5), max_size=12)


def entries_after(base: int, sizes: list[int], salt: int = 0) -> list[Entry]:
    made, first = [], base + 1
    for size in sizes:
        made.append(Entry(first, size, EntryKind.DATA, Mid(1, salt, first), 0, NO_DIGEST))
        first += size
    return made


@given(st.integers(0, 50), counts, st.data())
def test_the_log_answers_like_a_plain_list(base: int, sizes: list[int], data: st.DataObject) -> None:
    plain = entries_after(base, sizes)
    log = CommitLog(base, plain)
    for number in range(max(0, base - 2), log.last + 3):
        covering = [entry for entry in plain if entry.first <= number <= entry.last]
        assert log.covering(number) == (covering[0] if covering else None)
        assert log.is_end(number) == (number == base or any(entry.last == number for entry in plain))
    ends = [base, *(entry.last for entry in plain)]
    after, through = data.draw(st.sampled_from(ends)), data.draw(st.sampled_from(ends))
    between = tuple(entry for entry in plain if after < entry.first and entry.last <= through)
    assert log.between(after, through) == between
    cut = data.draw(st.sampled_from(ends))
    log.truncate(cut)
    plain = [entry for entry in plain if entry.last <= cut]
    new_base = data.draw(st.sampled_from([end for end in ends if end <= cut]))
    log.forget(new_base)
    plain = [entry for entry in plain if entry.first > new_base]
    assert (log.base, log.last, len(log)) == (new_base, cut, len(plain))
    assert log.between(new_base, cut) == tuple(plain)


@given(counts, st.data())
def test_the_prefix_is_the_same_however_the_commits_arrive(sizes: list[int], data: st.DataObject) -> None:
    entries = entries_after(0, sizes)
    known, out = Prefix(), []
    parts = []
    for start in range(len(entries)):
        stop = data.draw(st.integers(start + 1, len(entries)))
        parts.append(entries[start:stop])
    for part in data.draw(st.permutations(parts)):
        out += known.learn(tuple(part), part[-1].last)
    assert out == entries
    assert not known.has_gap


# -- committing -------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(0, 1), st.data())
def test_what_is_committed_is_what_enough_servers_hold(
    servers: int, one_round: int, data: st.DataObject
) -> None:
    """The sorted shortcut against the sentence it is meant to implement; in one round with our own server."""
    config = GroupConfig.of("main", tuple(range(1, servers + 1)), one_round=one_round)
    log = CommitLog(0, entries_after(0, [1] * 10, salt=1)[:0])
    reign = Reign(config, 1, make_epoch(1, 1), log, Ledger(), {}, 0, Chance(1))
    for _ in range(10):
        reign.claim() if log.last == 0 else reign._number(EntryKind.TICK)
    held = dict.fromkeys(range(1, servers + 1), 0)
    for _ in range(data.draw(st.integers(0, 12))):
        server, last = data.draw(st.integers(1, servers)), data.draw(st.integers(0, 10))
        before = reign.committed_upto
        reign.on_acknowledge(0, server, last, [])
        held[server] = max(held[server], last)
        enough = [n for n in range(11) if sum(h >= n for h in held.values()) >= config.commit_quantity]
        assert reign.committed_upto == (min(max(enough), held[1]) if one_round else max(enough))
        assert reign.committed_upto >= before


# -- recovery against memory ------------------------------------------------------------------------

EPOCHS = [make_epoch(counter, 1) for counter in range(1, 8)]
deeds = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), counts),
        st.tuples(st.just("start"), st.integers(0, 99), counts),
        st.tuples(st.just("commit"), st.integers(0, 99)),
        st.tuples(st.just("base"), st.integers(0, 99)),
    ),
    max_size=12,
)


@given(deeds)
def test_a_commit_server_comes_back_from_its_records_as_it_was(script: list[Any]) -> None:
    """Whatever was submitted, cut by new epochs and forgotten below the base."""
    config = GroupConfig.of("main", (1,))
    server = CommitServer(config, 1, JournalCounter(), DurableEpochs(JournalCounter()))
    order: list[bytes] = []
    epoch, base = 0, 0

    def step(event: RoleEvent) -> None:
        for effect in server.step(0, [event]):
            if isinstance(effect, Append) and isinstance(effect.record, OrderRecord):
                order.append(effect.record.body)
                server.step(0, [Synced(effect.index)])

    for salt, deed in enumerate((("start", 0, []), *script)):
        log = server.log
        if deed[0] == "submit":
            entries = tuple(entries_after(log.last, deed[1], salt))
            step(Received(1, m.CommitSubmit(EPOCHS[epoch - 1], log.last, entries, 0)))
        elif deed[0] == "start" and epoch < len(EPOCHS):
            epoch += 1
            kept = log.between(server.committed_upto, log.last)
            kept = kept[: deed[1] % (len(kept) + 1)]
            end = kept[-1].last if kept else server.committed_upto
            entries = (*kept, *entries_after(end, deed[2], salt))
            step(Received(1, m.EpochStart(EPOCHS[epoch - 1], server.committed_upto + 1, entries, 0)))
        elif deed[0] == "commit":
            ends = [log.base, *(entry.last for entry in log.between(log.base, log.last))]
            step(Received(1, m.Heartbeat(EPOCHS[epoch - 1], ends[deed[1] % len(ends)], 0, 1, 0, True)))
        elif deed[0] == "base":
            ends = [entry.last for entry in log.between(log.base, server.committed_upto)]
            if ends:
                base = ends[deed[1] % len(ends)]
                server._marks[base] = Ledger().encode()
                server._stable = (base, bytes(16))
                step(Learned((), (_stable(log.last + 1, server.committed_upto + 1),), ()))
    recovered = recover(
        found(*map(decode_order, order), checkpoint=at(base) if base else None), MemoryPayloads()
    )
    assert (recovered.log.base, recovered.log.last) == (server.log.base, server.log.last)
    assert recovered.log_epoch == server.log_epoch
    assert recovered.log.between(recovered.base, recovered.log.last) == server.log.between(
        server.log.base, server.log.last
    )


def _stable(number: int, n: int) -> Entry:
    detail = StableDetail(n, bytes(16), (1,)).encode()
    return Entry(number, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, 1, 1), 0, NO_DIGEST, detail)
