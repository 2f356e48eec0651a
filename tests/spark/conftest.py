"""Spark for tests: one session for all of them, a message system beside it, nobody left behind.

A session takes some ten seconds to start, so there is one, `local[2,3]`: two tasks at a time, each tried
three times. Tests keep apart by names: `name()` gives one that nobody else has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import antiphon.blocking
from tests.processes import Server
from tests.system_packages import require_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = Path(__file__).parents[2] / "src"
END_SECONDS = 30.0

QUIET = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
# A worker whose query was stopped finds its pipe broken, and says so at length.
logger.python.name = org.apache.spark.api.python
logger.python.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2
logger.write.level = off
"""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "20s",
    # On a local disk a rename is atomic, and this manager several times faster than the cautious one.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def spark_settings(folder: Path) -> dict[str, str]:
    """What every session of these tests is told, whoever starts it."""
    log = folder / "log4j2.properties"
    log.write_text(QUIET)
    java = f"-Dlog4j2.configurationFile={log} -Xss2m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return {
        **SETTINGS,
        "spark.driver.extraJavaOptions": java,
        "spark.executorEnv.PYTHONPATH": str(SOURCES),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def spark_environment() -> dict[str, str]:
    """Workers are started with `python3` of PATH unless told otherwise, and find our packages there."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(SOURCES),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def java() -> None:
    """Spark can start, or the test is skipped."""
    require_package("java", "default-jre-headless")


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one session."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    before = {name: os.environ.get(name) for name in spark_environment()}
    os.environ.update(spark_environment())
    builder = SparkSession.Builder().master("local[2,3]").appName("tests")
    for name, text in spark_settings(tmp_path_factory.mktemp("spark")).items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    yield session
    stop_spark(session)
    for name, text in before.items():
        if text is None:
            del os.environ[name]
        else:
            os.environ[name] = text


def stop_spark(session: SparkSession) -> None:
    """Stop a session, and the machine it runs in: that would otherwise live as long as this process."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "a session has a gateway"
    for query in session.streams.active:
        query.stop()
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    machine: subprocess.Popen[bytes] = gateway.proc  # type: ignore[attr-defined]
    assert machine.stdin is not None
    machine.stdin.close()
    machine.wait(timeout=END_SECONDS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An embedded message system."""
    with Server(tmp_path_factory.mktemp("antiphon") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def servers(server: Server) -> str:
    """Its address, as the option `servers` wants it."""
    return server.url.removeprefix("antiphon://")


@pytest.fixture(scope="session")
def connection(server: Server) -> Iterator[antiphon.blocking.Connection]:
    with antiphon.blocking.connect(server.url) as connection:
        yield connection


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names of destinations that no other test uses: `name("queue")`."""

    def fresh(kind: str) -> str:
        return f"{kind}:{uuid.uuid4().hex}"

    return fresh
