"""Kafka: brokers that are also their own controllers, on this machine only; and Spark's connector to them.

Maven fetches both by their coordinates.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.processes import Processes
from peers.system import AT_ONCE, NAME, Client, Send, System, Unavailable, free_ports, rotated

VERSION = "3.9.1"
BROKER = (f"org.apache.kafka:kafka_2.13:{VERSION}",)
# Each without what it depends on: Spark has the rest. No security tokens are used here, so that any version
# of their provider will do; this one is found everywhere.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    f"org.apache.kafka:kafka-clients:{VERSION}",
    "org.apache.commons:commons-pool2:2.12.1",
)
FETCH_SECONDS = 600.0
FORMAT_SECONDS = 120.0
CALL_SECONDS = 5.0
POLL_SECONDS = 0.1

SETTINGS = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
default.replication.factor={replicas}
min.insync.replicas={enough}
offsets.topic.replication.factor={replicas}
"""


def fetch(folder: Path, coordinates: tuple[str, ...], with_dependencies: bool) -> list[Path]:
    """The jars of these packages, copied into a folder."""
    if shutil.which("mvn") is None:
        raise Unavailable("Kafka's packages come by Maven. On Debian: apt-get install maven")
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
    fetched = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS)
    if fetched.returncode:
        raise Unavailable(f"Maven does not fetch Kafka's packages: {fetched.stdout[-500:]}")
    return sorted((folder / "jars").glob("*.jar"))


class Kafka(System):
    title = "Kafka"
    durability = "in the page cache of all in sync"
    version = VERSION

    def __init__(self, brokers: int = 3, partitions: int = 1) -> None:
        self._brokers = brokers
        self._partitions = partitions

    def install(self, folder: Path) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"{error}: pip install confluent-kafka") from error
        self.fetch(folder)

    def fetch(self, folder: Path) -> None:
        """The broker without a client."""
        self._jars = fetch(folder / "kafka", BROKER, with_dependencies=True)

    def start(self, folder: Path, processes: Processes) -> str:
        java = ["java", "-Xmx1g", "-cp", ":".join(map(str, self._jars))]
        numbers = range(1, self._brokers + 1)
        ports = free_ports(2 * self._brokers)
        controllers = ports[self._brokers :]
        files = []
        for number, port, controller in zip(numbers, ports, controllers, strict=False):
            files.append(folder / f"k{number}.properties")
            files[-1].write_text(
                SETTINGS.format(
                    number=number,
                    voters=",".join(
                        f"{one}@127.0.0.1:{at}" for one, at in zip(numbers, controllers, strict=True)
                    ),
                    port=port,
                    controller=controller,
                    data=folder / f"k{number}",
                    partitions=self._partitions,
                    replicas=self._brokers,
                    enough=min(2, self._brokers),
                )
            )
        storage = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c"]
        for file in files:
            subprocess.run([*java, *storage, file], check=True, capture_output=True, timeout=FORMAT_SECONDS)
        for file in files:
            processes.start(file.stem, [*java, "kafka.Kafka", file])
        return ",".join(f"127.0.0.1:{port}" for port in ports[: self._brokers])

    def client(self, address: str, place: int = 0) -> Client:
        return _Client(",".join(rotated(address, place)))


class _Client(Client):
    """A producer has a thread that waits for confirmations, since the library has no event loop."""

    def __init__(self, servers: str) -> None:
        self._settings = {"bootstrap.servers": servers, "log_level": 0}
        self._consumer: Any = None
        self._last: Any = None
        self._senders: Any = None
        self._is_over = False
        self._polling: threading.Thread | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._polling is not None:
            self._is_over = True
            self._polling.join()
        if self._consumer is not None:
            if self._last is not None:
                self._consumer.commit(message=self._last, asynchronous=False)
            self._consumer.close()

    async def create(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._settings)
        topic = NewTopic(NAME, 1, replication_factor=3)
        (created,) = admin.create_topics([topic], request_timeout=CALL_SECONDS).values()
        try:
            await asyncio.wrap_future(created)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _producer(self, **settings: Any) -> Any:
        from confluent_kafka import Producer

        return Producer({**self._settings, "acks": "all", **settings})

    async def publish(self, bodies: Iterable[bytes]) -> None:
        # Its own linger, 5 ms, suits batches.
        producer = self._producer()

        def confirmed(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        failed: list[Any] = []
        for body in bodies:
            while True:
                try:
                    producer.produce(NAME, body, on_delivery=confirmed)
                    break
                except BufferError:
                    producer.poll(POLL_SECONDS)
            producer.poll(0)
        producer.flush()
        assert not failed, f"{len(failed)} messages were not confirmed: {failed[0]}"

    async def senders(self, count: int) -> list[Send]:
        producer = self._producer(**{"linger.ms": 0})
        loop = asyncio.get_running_loop()

        def poll() -> None:
            while not self._is_over:
                producer.poll(POLL_SECONDS)

        self._polling = threading.Thread(target=poll)
        self._polling.start()

        def tell(confirmed: asyncio.Future[None], error: Any) -> None:
            if confirmed.cancelled():
                return
            if error is None:
                confirmed.set_result(None)
            else:
                confirmed.set_exception(RuntimeError(str(error)))

        async def send(body: bytes) -> None:
            confirmed: asyncio.Future[None] = loop.create_future()
            producer.produce(
                NAME,
                body,
                on_delivery=lambda error, _: loop.call_soon_threadsafe(tell, confirmed, error),
            )
            await confirmed

        return [send] * count

    async def attach(self) -> None:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        self._consumer = Consumer(
            {
                **self._settings,
                "group.id": NAME,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        # There is one consumer, so a group has nothing to share out.
        while True:
            try:
                self._consumer.assign(self._consumer.committed([TopicPartition(NAME, 0)], CALL_SECONDS))
                return
            except KafkaException as error:
                # The brokers first have to agree who keeps the offsets.
                if error.args[0].code() not in (
                    KafkaError.NOT_COORDINATOR,
                    KafkaError.COORDINATOR_NOT_AVAILABLE,
                    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
                ):
                    raise

    async def receive(self) -> list[bytes]:
        if self._last is not None:
            self._consumer.commit(message=self._last, asynchronous=True)
        received: list[Any] = []
        while not received:
            received = self._consumer.consume(1, timeout=POLL_SECONDS)
        received += self._consumer.consume(AT_ONCE - 1, timeout=0)
        failed = [message.error() for message in received if message.error()]
        assert not failed, f"Kafka's consumer fails: {failed[0]}"
        self._last = received[-1]
        return [message.value() for message in received]
