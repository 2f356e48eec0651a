"""Reading one record: the bytes that were written, or `Damaged`; never other bytes."""

from __future__ import annotations

from typing import Final

from antiphon.errors import Damaged
from antiphon.journal.format import (
    RECORD_HEADER_BYTES,
    RecordHeader,
    decode_record_header,
    payload_digest,
    segment_name,
)
from antiphon.journal.ports import Disk, Location, identity_of

# A batch that is delivered in many slices is read once for each; verifying two megabytes takes 50 us.
_REMEMBERED_MAX: Final = 64


class RecordReader:
    __slots__ = ("_disk", "_seed", "_verified", "_views")

    def __init__(self, disk: Disk, seed: int) -> None:
        self._disk = disk
        self._seed = seed
        self._views: dict[int, memoryview] = {}
        self._verified: dict[Location, memoryview] = {}

    def read(self, location: Location) -> memoryview:
        payload = self._verified.get(location)
        if payload is None:
            payload = self.verify(location)[1]
            if len(self._verified) >= _REMEMBERED_MAX:
                del self._verified[next(iter(self._verified))]
            self._verified[location] = payload
        return payload

    def verify(self, location: Location) -> tuple[RecordHeader, memoryview]:
        """Header and payload, compared with their checksums now."""
        segment, offset, length, identity = location
        view = self._views.get(segment)
        if view is None:
            view = self._views[segment] = self._disk.view(segment_name(segment))
        header = decode_record_header(view, offset, self._seed, segment, offset)
        if header is None:
            raise Damaged(segment_name(segment), offset, "the header of a data record does not verify")
        if header.length != length or identity_of(header.digest) != identity:
            text = f"another envelope lies there than the one that was written, {header.mid}"
            raise Damaged(segment_name(segment), offset, text)
        payload = view[offset + RECORD_HEADER_BYTES : offset + RECORD_HEADER_BYTES + length]
        if payload_digest(header.mid, header.ts, header.count, payload) != header.digest:
            raise Damaged(segment_name(segment), offset, f"the data record of {header.mid} does not verify")
        return header, payload

    def forget_all(self) -> None:
        self._views.clear()
        self._verified.clear()

    def forget(self, segment: int) -> None:
        self._views.pop(segment, None)
        self._verified = {at: view for at, view in self._verified.items() if at.segment != segment}
