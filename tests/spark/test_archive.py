"""The jobs on archives, through Spark: archive, audit, replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import antiphon.blocking
from antiphon.pipeline import archive
from tests.processes import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = Callable[[str], str]
Connection = antiphon.blocking.Connection


def test_an_archive_has_every_message_once_over_two_runs(
    spark: SparkSession, server: Server, connection: Connection, name: Name, tmp_path: Path
) -> None:
    topic = name("topic")
    numbers: list[int] = []
    for first in (0, 500):
        with connection.session() as session, session.producer(topic) as producer:
            receipts = producer.send_many([f"{number}" for number in range(first, first + 500)])
            numbers += [receipt.sequence for receipt in receipts]
        assert archive(server.url, [topic], tmp_path / "archive", spark=spark).rows == 500
    frame = spark.read.parquet(str(next((tmp_path / "archive").glob("destination=*"))))
    rows = frame.orderBy("sequence").select("sequence", "body", "body_kind").collect()
    assert [row.sequence for row in rows] == numbers
    assert [row.body.decode() for row in rows] == [f"{number}" for number in range(1000)]
    assert {row.body_kind for row in rows} == {"str"}
