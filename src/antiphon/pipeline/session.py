"""The session of Spark in which a job runs: its own, or that of the program that calls the job."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.errors import AntiphonError, LocalError, error_from_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

SLICES: Final = 16
"""Tasks of Spark for each core: of very many small tasks of ours, some go together."""

EXTRA: Final = "pip install 'antiphon[spark]'"

_PYTHON_ERROR: Final = re.compile(r"[A-Za-z]\w*(Error|Exception): ")

# Spark's own words would hide ours: what fails is raised, with its sentence.
_QUIET: Final = """
rootLogger.level = off
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
"""


@contextmanager
def spark_session(master: str, name: str, given: SparkSession | None = None) -> Iterator[SparkSession]:
    """The given session, or that of this process, or a new one on this master, which ends with the block."""
    if given is not None:
        yield given
        return
    require_packages("pyspark")
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    # `make setup` runs this module as a program, which must not be imported before.
    from antiphon.pipeline import java

    java.require()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="antiphon-spark-") as folder:
        log = Path(folder, "log4j2.properties")
        log.write_text(_QUIET)
        settings: dict[str, Any] = {
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log}",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
        }
        builder = SparkSession.Builder().master(master).appName(name)
        try:
            with _stderr_to(Path(folder, "java.log")):
                session = builder.config(map=settings).getOrCreate()
        except Exception as error:
            raise LocalError(f"Spark did not start on {master}: {last_sentence(error)}") from None
        try:
            yield session
        finally:
            session.stop()


@contextmanager
def _stderr_to(place: Path) -> Iterator[None]:
    """Processes that are started in this block write their errors to a file: Java has its own to say at every
    start, and errors of jobs are raised, with their sentences."""
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with place.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


class JobSession:
    """The session of a job that starts Spark when it has work for it, and not before."""

    def __init__(self, master: str, name: str, given: SparkSession | None = None) -> None:
        self._making = spark_session(master, name, given)
        self._opened: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._opened is None:
            self._opened = self._making.__enter__()
        return self._opened

    def run(self, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """What `work` makes of each task, in their order."""
        return run_tasks(self.spark, tasks, work) if tasks else []

    def __enter__(self) -> JobSession:
        return self

    def __exit__(self, *how: Any) -> None:
        if self._opened is not None:
            self._making.__exit__(*how)


def run_tasks(session: SparkSession, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
    """What `work` makes of each task, in their order. Spark's workers do the work."""
    if not tasks:
        return []
    context = session.sparkContext
    slices = min(len(tasks), SLICES * context.defaultParallelism)
    with deliberate_errors():
        return context.parallelize(list(tasks), slices).map(work).collect()


@contextmanager
def deliberate_errors() -> Iterator[None]:
    """An error of ours that Spark has wrapped is raised as itself, and any other as a LocalError."""
    try:
        yield
    except (AntiphonError, KeyboardInterrupt):
        raise
    except Exception as error:
        sentence = last_sentence(error)
        name, _, text = sentence.partition(": ")
        if name.startswith("antiphon.errors."):
            raise _named(name.rpartition(".")[2], text) from None
        raise LocalError(f"Spark could not do it: {sentence}") from None


def _named(name: str, text: str) -> AntiphonError:
    import antiphon.errors

    cls = getattr(antiphon.errors, name, AntiphonError)
    return error_from_code(cls.code, text)


def last_sentence(error: Exception) -> str:
    """The last sentence of a traceback within a traceback: ours, or Python's, or else Spark's first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("antiphon.")]
    named = named or [line for line in lines if _PYTHON_ERROR.match(line)]
    return named[-1] if named else lines[0] if lines else type(error).__name__


def require_packages(*names: str) -> None:
    """Raise unless these packages are installed."""
    for name in names:
        if package_version(name) is None:
            raise LocalError(f"{name} is not installed: {EXTRA}")


def package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
