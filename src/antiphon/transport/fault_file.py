"""FaultFile: fault rules that can be changed while a node runs, by writing them to a file.

The driver looks several times a second whether the file is another than before. Rules that make no sense are
logged, and the former ones stay. Without the file there are no faults.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from antiphon.errors import LocalError
from antiphon.transport.faults import FaultLayer, FaultRules

LOOK_SECONDS: Final = 0.1

_logger = logging.getLogger("antiphon.transport")


class FaultFile:
    """Keeps a layer's rules as the file has them."""

    def __init__(self, path: Path, layer: FaultLayer) -> None:
        self._path = path
        self._layer = layer
        self._seen: object = ()

    def look(self) -> bool:
        """Read the file if it has changed; says whether there are new rules."""
        try:
            status = self._path.stat()
            seen: object = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            text = self._path.read_text(encoding="utf-8") if seen is not None else ""
            self._layer.rules = FaultRules.parse(text)
        except (OSError, UnicodeDecodeError, LocalError) as error:
            _logger.warning("the fault rules in %s stay as they were: %s", self._path, error)
            return False
        return True
