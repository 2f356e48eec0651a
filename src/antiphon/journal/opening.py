"""Opening: a journal that was read and not begun yet, so that nothing on its disk is changed so far.

Where it sits
    recovery  ->  OPENING  ->  journal, and whoever chooses the checkpoint to begin with

What it promises
    O1  Until `begin` the disk is as it was: who refuses to start leaves it as it was found.
    O2  A checkpoint that is passed over stays where it is, with the segments it refers to: a later version of
        the software may be able to read it. The checkpoints before it move up.
"""

from __future__ import annotations

from antiphon.journal import checkpoints, recovery
from antiphon.journal.format import Settings, seed_of
from antiphon.journal.journal import Journal
from antiphon.journal.ports import Disk, Location
from antiphon.journal.records import RecordReader
from antiphon.journal.recovery import Recovered


class Opening:
    """What a disk holds, before anything is written to it."""

    def __init__(self, disk: Disk, *, has_peers: bool = False) -> None:
        """Read everything; raises `Damaged` if the superblock or the order is not what was written.

        With `has_peers`, other nodes have the same data: what is damaged of it is passed over and told.
        """
        self._disk = disk
        self._scan = recovery.scan(disk, has_peers=has_peers)
        self.disk_id = self._scan.superblocks.current.disk_id
        self._reader = RecordReader(disk, seed_of(self.disk_id))
        self._passed_over: dict[int, str] = {}
        self.found: Recovered = Recovered.of(self._scan)

    def pass_over(self, n: int, why: str) -> None:
        """The checkpoint at n cannot be used: go on with those before it (O2)."""
        self._passed_over[n] = why
        scan = self._scan
        scan.checkpoints = checkpoints.find(
            self._disk, self.disk_id, self._disk.list_files(), self._passed_over
        )
        self.found = Recovered.of(scan)

    def verify(self, location: Location) -> None:
        """Compare the record that lies there with its checksums; raises `Damaged`."""
        self._scan.check_segment(location.segment)
        self._reader.verify(location)

    def begin(self, settings: Settings) -> Journal:
        """Mend what was found to be mendable, and begin the next run."""
        self._scan.settle(self._disk)
        return Journal(self._disk, settings, self._scan)
