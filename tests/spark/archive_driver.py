"""A driver that tests kill: it archives topics again and again, in small rounds, until it is ended.

Started as a program, with one JSON object as its only word. It prints a line for each commit, and dies with
the process that started it.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from antiphon.runtime.launcher import die_with_parent


def main() -> None:
    told = json.loads(sys.argv[1])
    die_with_parent(told["parent"])
    from pyspark.sql import SparkSession

    from antiphon.pipeline import connections
    from antiphon.pipeline.jobs.archiving import ArchiveSettings, Archiving
    from antiphon.pipeline.jobs.choosing import connection_options
    from antiphon.pipeline.jobs.folder import ArchiveFolder
    from antiphon.pipeline.session import run_tasks

    builder = SparkSession.Builder().master("local[2]").appName("archive")
    for name, text in told["settings"].items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    options = connection_options(told["url"])
    settings = ArchiveSettings(
        words=tuple(told["words"]),
        hold_name=told["hold"],
        file_rows=told["file_rows"],
        round_rows=told["round_rows"],
    )
    while True:
        Archiving(
            connections.ranges(options),
            options,
            ArchiveFolder(told["folder"]),
            settings,
            partial(run_tasks, session),
            progress=lambda done, total: print(done, total, flush=True),
        ).archive()


if __name__ == "__main__":
    main()
