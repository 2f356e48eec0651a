"""Opening: a journal that was read and not begun yet: nothing on its disk is changed.

OPN1  Until `begin` the disk is as it was, also if the node refuses to start.
OPN2  A checkpoint that is passed over stays, with the segments it refers to: a later version of the software
      may be able to read it. The checkpoints before it move up.
"""

from __future__ import annotations

from antiphon.journal import checkpoints, recovery
from antiphon.journal.format import Settings, seed_of
from antiphon.journal.journal import Journal
from antiphon.journal.ports import Disk, Location
from antiphon.journal.records import RecordReader
from antiphon.journal.recovery import Recovered


class Opening:
    def __init__(self, disk: Disk, *, has_peers: bool = False) -> None:
        """Read everything; raises `Damaged` if the superblock or the order is not as written.

        With `has_peers`, other nodes have the same data: damaged data are passed over and told.
        """
        self._disk = disk
        self._scan = recovery.scan(disk, has_peers=has_peers)
        self.disk_id = self._scan.superblocks.current.disk_id
        self._reader = RecordReader(disk, seed_of(self.disk_id))
        self._passed_over: dict[int, str] = {}
        self.found: Recovered = Recovered.of(self._scan)

    def pass_over(self, n: int, why: str) -> None:
        """Go on with the checkpoints before n, which cannot be used (OPN2)."""
        self._passed_over[n] = why
        scan = self._scan
        scan.checkpoints = checkpoints.find(
            self._disk, self.disk_id, self._disk.list_files(), self._passed_over
        )
        self.found = Recovered.of(scan)

    def verify(self, location: Location) -> None:
        """Compare a record with its checksums; raises `Damaged`."""
        self._scan.check_segment(location.segment)
        self._reader.verify(location)

    def begin(self, settings: Settings) -> Journal:
        """Write the repairs, and begin the next run."""
        self._scan.settle(self._disk)
        return Journal(self._disk, settings, self._scan)
