"""The trace: lines for people, a digest for machines."""

from __future__ import annotations

from antiphon.bus.messages import CommitAcknowledge, DataReport, ReportItem
from antiphon.ids import Mid
from antiphon.ranges import Ranges
from antiphon.sim.trace import Trace, summary


def test_a_digest_depends_on_every_line() -> None:
    one, same, other = Trace(is_on=True), Trace(is_on=True), Trace(is_on=True)
    for trace, word in ((one, "a"), (same, "a"), (other, "b")):
        trace.note(1, "node", "begins")
        trace.note(2, "node", word)

    assert one.digest() == same.digest() != other.digest()


def test_lines_can_be_shown() -> None:
    shown: list[str] = []

    Trace(show=shown.append).note(1_500_000, "node 1", "wakes up")

    assert shown == ["    1.500000 node 1     wakes up"]


def test_a_summary_names_what_a_message_says() -> None:
    assert (
        summary(CommitAcknowledge(epoch=65537, last=4)) == "CommitAcknowledge(epoch=65537 last=4 status=OK)"
    )
    assert summary(Ranges([(1, 3)])) == "Ranges((1, 3))"
    assert summary(b"x" * 100).startswith("<100 B ")


def test_a_summary_of_many_items_still_depends_on_all_of_them() -> None:
    def report(last: int) -> DataReport:
        items = [ReportItem(Mid(1, 1, pseq), 0, 1, bytes(16)) for pseq in (1, 2, 3, 4, last)]
        return DataReport(epoch_hint=0, items=tuple(items))

    assert summary(report(5)) != summary(report(6))
    assert len(summary(report(5))) < 300
