"""`antiphon pipeline`: the jobs of the data pipeline on Spark.

`archive` writes the messages of destinations to Parquet files, `audit` checks that each is there once, and
`replay` sends them to another destination. docs/operating/archives.md has more. `lag` says how far readers
are behind; docs/operating/lag.md has more.

`source-check` connects, and shows what a query would find: destinations, where their channels begin and end,
the holds, the lag of a checkpoint, and a few messages. With --master the messages go through Spark. The exit
code is 1 when something is wrong. docs/reference/spark.md has more.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.jobs import add_jobs
from antiphon.cli.options import add_connection_options, tls_option
from antiphon.errors import LocalError

if TYPE_CHECKING:
    from antiphon.pipeline.check import CheckReport

ALL = "*"
SAMPLE_ROWS = 5
BODY_SHOWN = 60


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "pipeline", help="the jobs on Spark", description=__doc__
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    check = jobs.add_parser(
        "source-check", help="show what a query would find; the first thing to run when something is wrong"
    )
    check.add_argument("destination", nargs="*", help="for example topic:orders; all, if none is named")
    check.add_argument("--pattern", help="instead of names: what the whole name must match")
    check.add_argument("--match", choices=("glob", "regex"), default="regex", help="how the pattern is read")
    check.add_argument(
        "--rows", type=int, default=SAMPLE_ROWS, help="messages to show (default: %(default)s)"
    )
    check.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="of a query: show how far it lags behind"
    )
    check.add_argument("--master", metavar="URL", help="read the messages through Spark, such as local[2]")
    add_connection_options(check)
    check.set_defaults(run=_source_check)
    add_jobs(jobs)


def _source_check(arguments: argparse.Namespace) -> int:
    from antiphon.pipeline.check import check
    from antiphon.pipeline.connections import close_all
    from antiphon.pipeline.jobs.choosing import tls_texts
    from antiphon.pipeline.options import SourceOptions

    options = {"servers": arguments.url, **tls_texts(tls_option(arguments))}
    if arguments.destination and arguments.pattern:
        raise LocalError("name destinations or give a pattern, not both")
    if arguments.destination:
        options["subscribe"] = ",".join(arguments.destination)
    elif arguments.pattern:
        options |= {"subscribePattern": arguments.pattern, "match": arguments.match}
    else:
        options |= {"subscribePattern": ALL, "match": "glob"}
    try:
        report = check(
            SourceOptions.parse(options), max(0, arguments.rows), arguments.checkpoint, arguments.master
        )
    finally:
        close_all()
    if arguments.json:
        print(json.dumps(report.as_json(), ensure_ascii=False))
    else:
        _show(report)
        for problem in report.problems:
            print(f"antiphon: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def _show(report: CheckReport) -> None:
    print(f"{report.url} answers")
    print("  ".join(f"{name} {found or 'is missing'}" for name, found in report.packages.items()))
    for channel in report.channels:
        print(
            f"channel {channel['channel']}: numbers {channel['first']} to {channel['next'] - 1},"
            f" {channel['rows']:,} messages, {channel['bytes']:,} bytes"
            + (" wait" if report.checkpoint is not None else " kept")
        )
    for one in report.destinations:
        lost = f", lost through {one['lost_through']}" if one["lost_through"] else ""
        print(f"  {one['name']} on {one['channel']}: {one['first']} to {one['next'] - 1}{lost}")
    if report.checkpoint is not None:
        lag = report.checkpoint
        print(
            f"checkpoint {json.dumps(lag['offset'])}: {lag['rows']:,} messages, {lag['bytes']:,} bytes behind"
        )
    for hold in report.holds:
        verb = "consumes" if hold["consume"] else "holds"
        print(
            f"{hold['name']} {verb} channel {hold['channel']} from {hold['position']} on:"
            f" {hold['rows']:,} messages, {hold['bytes']:,} bytes;"
            f" heard of {hold['age_s']:.0f} s ago, limit {hold['limit_s']:.0f} s"
        )
    for row in report.sample:
        body = str(row.get("body", ""))
        print(f"{row['sequence']:>12}  {row['timestamp']}  {row['destination']}  {body[:BODY_SHOWN]}")
