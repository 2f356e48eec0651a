"""What is installed from a wheel is all that Spark needs: it finds us without being told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import antiphon.blocking
from tests.processes import Server
from tests.spark.conftest import spark_environment, spark_settings

PROJECT = Path(__file__).parents[2]
SECONDS = 110

READ = """
import sys
import antiphon, pyspark_antiphon
from pyspark.sql import SparkSession

settings = dict(word.split("=", 1) for word in sys.argv[3:])
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
frame = spark.read.format("antiphon").option("servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print(antiphon.__file__, pyspark_antiphon.__file__, frame.count())
spark.stop()
"""


def test_to_pandas_failed_though_the_extra_was_installed() -> None:
    described = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", one)[0] for one in described["optional-dependencies"]["spark"]]  # type: ignore[index]
    assert "pandas" in names


@pytest.mark.long
def test_spark_finds_what_a_wheel_brings_without_registration(
    java: None,
    server: Server,
    servers: str,
    connection: antiphon.blocking.Connection,
    name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = name("topic")
    connection.admin().create(topic, retention=3600)
    with connection.session() as session, session.producer(topic) as producer:
        producer.send_many([b"x"] * 7)
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    built = subprocess.run([*words, str(PROJECT)], capture_output=True, text=True, timeout=SECONDS)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("antiphon-*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(installed)
    # Before what is installed here; from which nothing of ours is taken, or it would be seen below.
    environment = {**os.environ, **spark_environment(), "PYTHONPATH": str(installed)}
    settings = {**spark_settings(tmp_path), "spark.executorEnv.PYTHONPATH": str(installed)}
    read = subprocess.run(
        [sys.executable, "-c", READ, servers, topic, *(f"{key}={text}" for key, text in settings.items())],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        cwd=tmp_path,
    )
    assert read.returncode == 0, read.stderr
    assert read.stdout.split() == [
        str(installed / "antiphon" / "__init__.py"),
        str(installed / "pyspark_antiphon" / "__init__.py"),
        "7",
    ]
