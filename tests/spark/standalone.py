"""A cluster of Spark's own kind on this machine: a master and workers, from the package that pip installs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

import pyspark

from tests.spark.conftest import QUIET, spark_environment
from tests.spark.process_tree import command_of, descendants

READY_SECONDS: Final = 120.0
END_SECONDS: Final = 30.0
SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"

# Nobody outlives the tests, not even if those are killed.
DYING_WITH_US: Final = (
    sys.executable,
    "-c",
    "import os, sys; from antiphon.runtime.launcher import die_with_parent;"
    "die_with_parent(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])",
    str(os.getpid()),
)


class Standalone:
    """A master on a port of its own, and some workers with one core each."""

    def __init__(self, folder: Path, port: int, workers: int = 2) -> None:
        self.url = f"spark://127.0.0.1:{port}"
        self._port = port
        self._workers = workers
        self._folder = folder
        # What they say goes to files, for whoever looks for what went wrong; they are told to say little.
        log = folder / "log4j2.properties"
        log.write_text(QUIET.replace("rootLogger.level = error", "rootLogger.level = info"))
        self._environment = {
            **os.environ,
            **spark_environment(),
            "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={log} -XX:+UseSerialGC",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*DYING_WITH_US, "/bin/bash", str(SPARK_CLASS), *words],
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _say(self, name: str, words: str, process: subprocess.Popen[bytes]) -> None:
        """Wait until somebody has logged this."""
        deadline = time.monotonic() + READY_SECONDS
        handle = os.pidfd_open(process.pid)
        try:
            while words not in self.log(name):
                ended = select.select([handle], [], [], 0.1)[0]
                assert not ended, f"{name} ended: {self.log(name)}"
                assert time.monotonic() < deadline, f"{name} does not say {words!r}: {self.log(name)}"
        finally:
            os.close(handle)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def executors(self) -> list[int]:
        """The machines in which workers run tasks."""
        everybody = [pid for process in self._processes for pid in descendants(process.pid)]
        return [pid for pid in everybody if "CoarseGrainedExecutorBackend" in command_of(pid)]

    def __enter__(self) -> Standalone:
        try:
            master = self._start(
                "master",
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"),
            )
            self._say("master", "I have been elected leader", master)
            started = [
                self._start(
                    f"worker-{number}",
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                    *("--work-dir", str(self._folder / f"work-{number}"), self.url),
                )
                for number in range(self._workers)
            ]
            for number, worker in enumerate(started):
                self._say(f"worker-{number}", "Successfully registered with master", worker)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Workers first: they end their executors when they are asked to end."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=END_SECONDS)
        self._processes.clear()
