"""Source and sink speak TLS, on the driver and in the workers of the executors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import antiphon.blocking
from antiphon.cli.main import main
from tests.certificates import certificates
from tests.processes import Server
from tests.spark.messages import consume

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

MADE = certificates()
OPTIONS = {
    "tls.ca": str(MADE.pem("ca")),
    "tls.certificate": str(MADE.pem("client")),
    "tls.key": str(MADE.key("client")),
}


def test_source_and_sink_show_their_certificate(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listening = ["--tls-cert", str(MADE.pem("server")), "--tls-key", str(MADE.key("server"))]
    listening += ["--tls-client-ca", str(MADE.pem("ca"))]
    with (
        Server(tmp_path / "data", *listening) as server,
        antiphon.blocking.connect(server.url, tls=MADE.client("client")) as connection,
    ):
        options = {"servers": server.url.removeprefix("antiphons://"), **OPTIONS}
        rows = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as body")
        rows.write.format("antiphon").options(**options, destination="queue:a").mode("append").save()
        frame = spark.read.format("antiphon").options(**options, subscribe="queue:a").load()
        assert frame.count() == 100
        words = ["pipeline", "source-check", "queue:a", "--url", server.url]
        files = ["--tls-ca", "--tls-cert", "--tls-key"]
        own = [word for pair in zip(files, OPTIONS.values(), strict=True) for word in pair]
        assert main([*words, *own]) == 0
        assert f"{server.url} answers" in capsys.readouterr().out
        url = ["--url", server.url, *own]
        for job in (
            ["archive", "queue:a", "--to", str(tmp_path / "archive")],
            ["audit", "queue:a", "--archive", str(tmp_path / "archive")],
            ["replay", "queue:b", "--from", str(tmp_path / "archive")],
            ["lag"],
        ):
            assert main(["pipeline", *job, *url]) == 0
        assert len(consume(connection, "queue:a")) == len(consume(connection, "queue:b")) == 100
        # A CA that is wrong is told soon, and in words, by the driver.
        wrong = {**options, "tls.ca": str(MADE.pem("stranger")), "subscribe": "queue:a"}
        with pytest.raises(Exception, match="is of a CA that is not trusted here"):
            spark.read.format("antiphon").options(**wrong).load().count()
