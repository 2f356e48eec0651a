"""A Kafka broker of one node, and Spark's connector to it, for comparisons.

Maven fetches both by their coordinates. The broker is its own controller, listens on this machine only, and
keeps its data in the folder that it is given.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

BROKER = ("org.apache.kafka:kafka_2.13:3.9.1",)
# Each without what it depends on: Spark has the rest. No security tokens are used here, so that any version
# of their provider will do; this one is found everywhere.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
PARTITIONS = 2
READY_SECONDS = 60.0
END_SECONDS = 30.0

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def fetch(folder: Path, coordinates: tuple[str, ...], with_dependencies: bool) -> list[Path]:
    """The jars of these packages, copied into a folder."""
    if shutil.which("mvn") is None:
        raise SystemExit("the comparison with Kafka needs Maven. On Debian: apt-get install maven")
    folder.mkdir(parents=True)
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{'' if with_dependencies else alone}</dependency>"
        for group, artifact, version in (one.split(":") for one in coordinates)
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>antiphon</groupId><artifactId>bench</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return sorted((folder / "jars").glob("*.jar"))


class Kafka:
    """The broker while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self._jars = fetch(folder / "broker", BROKER, with_dependencies=True)
        self.connector = fetch(folder / "connector", CONNECTOR, with_dependencies=False)
        port, controller = free_ports(2)
        self.servers = f"127.0.0.1:{port}"
        self._port = port
        self._settings = folder / "kafka.properties"
        self._settings.write_text(
            SETTINGS.format(
                port=port, controller=controller, logs=folder / "kafka-data", partitions=PARTITIONS
            )
        )
        self._said = folder / "kafka.log"

    def __enter__(self) -> Kafka:
        java = ["java", "-Xmx1g", "-cp", ":".join(map(str, self._jars))]
        storage = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(self._settings)]
        subprocess.run([*java, *storage], check=True, capture_output=True, timeout=120)
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(self._settings)], stdout=said, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self
            time.sleep(0.1)
        self.__exit__(None, None, None)
        raise SystemExit(f"Kafka did not start: {self._said.read_text()[-2_000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on at the moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
