"""A cluster of real node processes that is hit in every way: started, watched, ended without leftovers.

`antiphon up` starts the nodes. A node that was killed is started again here, by `antiphon node`, as an
operator would. Whatever is awaited is awaited with a deadline, and a node that ends unasked ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import antiphon
from antiphon.cluster.config_file import read
from antiphon.cluster.topology import ClusterSpec
from antiphon.errors import AntiphonError
from tests.processes import ROOT, mount_small, program, unmount

READY_SECONDS: Final = 120.0
END_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.1
STDERR_SHOWN: Final = 6_000
PAGE: Final = 4096

# Nobody outlives the tests, not even if those are killed.
DYING_WITH_US: Final = (
    sys.executable,
    "-c",
    "import os, sys; from antiphon.runtime.launcher import die_with_parent;"
    "die_with_parent(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])",
    str(os.getpid()),
)

Status = dict[str, Any]


class NodeLife:
    """One life of one node, whoever started it."""

    def __init__(self, name: str, pid: int, own: subprocess.Popen[bytes] | None = None) -> None:
        self.name = name
        self.pid = pid
        self._own = own
        # Stands for this process even when it is over and its number is another's.
        self.handle = os.pidfd_open(pid)
        """Becomes readable when the process has ended."""

    @property
    def is_alive(self) -> bool:
        return not select.select([self.handle], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, number)

    def wait_end(self, seconds: float = END_SECONDS) -> None:
        assert select.select([self.handle], [], [], seconds)[0], f"{self.name} lives after {seconds:g} s"
        if self._own is not None:
            self._own.wait(timeout=seconds)

    def close(self) -> None:
        os.close(self.handle)
        if self._own is not None and self._own.stdout is not None:
            self._own.stdout.close()


class ClusterProcess:
    """A cluster on this machine."""

    def __init__(
        self,
        folder: Path,
        *,
        transport: str = "udp",
        client_managers: int = 2,
        message_managers: int = 3,
        options: Iterable[str] = (),
        has_faults: bool = True,
        failpoints: str = "",
        tls: antiphon.Tls | None = None,
    ) -> None:
        """For `failpoints` of the nodes' first lives see that module."""
        self.data = folder / "data"
        self.errors = folder / "stderr"
        self.fault_file = folder / "faults"
        self.fault_file.write_text("")
        self._fault_options = ["--faults", str(self.fault_file)] if has_faults else []
        self._size = ["--client-managers", str(client_managers), "--message-managers", str(message_managers)]
        self._size += ["--transport", transport, *options]
        self._failpoints = failpoints
        self._tls = tls
        self._mounted: list[Path] = []
        self._up: subprocess.Popen[bytes] | None = None
        self.is_kept = False
        """Shall the data stay when all is over?"""
        self.nodes: dict[str, NodeLife] = {}
        self.ready: dict[str, Any] = {}

    # -- lives -----------------------------------------------------------------

    def start(self) -> ClusterProcess:
        """Start all nodes together."""
        up = [*DYING_WITH_US, *program(self._failpoints), "up", "--data", str(self.data), "--port", "0"]
        self._up = self._launch([*up, "--json", *self._size, *self._fault_options])
        self.ready = self._ready_line(self._up)
        for row in self.ready["nodes"]:
            self.nodes[row["name"]] = NodeLife(row["name"], row["pid"])
        return self

    def _launch(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.errors.open("a") as errors:
            return subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                cwd=ROOT,
            )

    def _ready_line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], READY_SECONDS)[0]:
            raise AssertionError(f"not ready within {READY_SECONDS:g} s: {self.stderr()}")
        line = process.stdout.readline()
        if not line:
            process.wait(timeout=END_SECONDS)
            raise AssertionError(f"ended ({process.returncode}) before it was ready: {self.stderr()}")
        told: dict[str, Any] = json.loads(line)
        return told

    async def restart(self, *names: str, failpoints: str = "") -> None:
        """Start nodes that have ended, and wait until each is ready; for `failpoints` see that module."""
        started = {name: self._launch_node(name, failpoints) for name in names}
        for name, process in started.items():
            self.nodes[name] = NodeLife(name, process.pid, process)
        for process in started.values():
            # In a thread: clients in this process go on.
            await asyncio.to_thread(self._ready_line, process)

    def _launch_node(self, name: str, failpoints: str = "") -> subprocess.Popen[bytes]:
        assert not self.nodes[name].is_alive, f"{name} lives"
        self._forget(name)
        node = [*program(failpoints), "node", name, "--config", str(self.data / "cluster.toml"), "--json"]
        return self._launch([*DYING_WITH_US, *node, *self._fault_options])

    def _forget(self, name: str) -> None:
        if life := self.nodes.pop(name, None):
            life.close()

    def stderr(self) -> str:
        return self.log()[-STDERR_SHOWN:]

    # -- who is who ------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where clients connect."""
        url: str = self.ready["url"]
        return url

    @property
    def spec(self) -> ClusterSpec:
        return read((self.data / "cluster.toml").read_text())

    def named(self, role: str) -> list[str]:
        """The nodes of a role, in the order of the cluster's file."""
        return [row["name"] for row in self.ready["nodes"] if row["role"] == role]

    @property
    def message_managers(self) -> list[str]:
        return self.named("message-manager")

    @property
    def client_managers(self) -> list[str]:
        return self.named("client-manager")

    async def status(self) -> Status:
        """What the cluster says about itself, put together by a client manager that lives."""
        async with antiphon.connect(self.url, tls=self._tls) as connection:
            return await connection.admin().status()

    async def when(
        self, is_so: Callable[[Status], bool], what: str, within: float = ANSWER_SECONDS
    ) -> Status:
        """Ask until it is so. Between two questions see whether somebody ends unasked."""
        deadline = time.monotonic() + within
        alive = [name for name, life in self.nodes.items() if life.is_alive]
        told: object = None
        while True:
            try:
                async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                    told = await self.status()
            except (AntiphonError, TimeoutError) as error:
                told = repr(error)
            if isinstance(told, dict) and is_so(told):
                return told
            assert time.monotonic() < deadline, f"not {what} within {within:g} s: {told}; {self.stderr()}"
            await self.nobody_ends(LOOK_SECONDS, alive)

    async def nobody_ends(self, seconds: float, among: Iterable[str] = ()) -> None:
        """See for so long that no node ends."""
        names = list(among) or [name for name, life in self.nodes.items() if life.is_alive]
        handles = {self.nodes[name].handle: name for name in names}
        ended, _, _ = await asyncio.to_thread(select.select, list(handles), [], [], seconds)
        assert not ended, f"{[handles[one] for one in ended]} ended; {self.stderr()}"

    async def primary(self, channel: str = "a", within: float = ANSWER_SECONDS) -> str:
        """Who is primary of a channel, once somebody is and no other claims it."""
        status = await self.when(lambda told: len(_primaries(told, channel)) == 1, "one primary", within)
        return _primaries(status, channel)[0]

    async def another_primary(self, than: str, channel: str = "a", within: float = ANSWER_SECONDS) -> str:
        """Who is primary, once it is another."""

        def is_other(told: Status) -> bool:
            found = _primaries(told, channel)
            return len(found) == 1 and found[0] != than

        return _primaries(await self.when(is_other, f"another primary than {than}", within), channel)[0]

    async def backups(self, channel: str = "a") -> list[str]:
        primary = await self.primary(channel)
        return [name for name in self.message_managers if name != primary]

    async def synchronized(self, *names: str, within: float = ANSWER_SECONDS) -> Status:
        """Wait until these message managers, or all, are synchronized under one primary."""
        wanted = set(names or self.message_managers)

        def are(told: Status) -> bool:
            rows = {row["name"] for row in told["nodes"] if row["synchronized"] and row["state"] == "up"}
            return wanted <= rows and len(_primaries(told)) == len(told["channels"])

        return await self.when(are, f"synchronized: {sorted(wanted)}", within)

    async def equal(self, *names: str, within: float = ANSWER_SECONDS) -> None:
        """Wait until these replicas, or all, have applied the same: their digests must be the same too."""
        wanted = set(names or self.message_managers)
        deadline = time.monotonic() + within
        while True:
            async with antiphon.connect(self.url, tls=self._tls) as connection:
                rows = [row for row in await connection.admin().digests() if row["name"] in wanted]
            channels = {row["channel"] for row in rows}
            if {row["name"] for row in rows} == wanted and all(
                len({row["applied"] for row in rows if row["channel"] == channel}) == 1
                for channel in channels
            ):
                break
            assert time.monotonic() < deadline, f"not level within {within:g} s: {rows}; {self.stderr()}"
            await self.nobody_ends(LOOK_SECONDS)
        for channel in channels:
            digests = {row["digest"] for row in rows if row["channel"] == channel}
            assert len(digests) == 1, f"replicas differ: {rows}"

    async def says(self, name: str, words: str, since: int, within: float = ANSWER_SECONDS) -> None:
        """Wait until a node has logged this, behind so many characters of the log of all."""
        deadline = time.monotonic() + within
        while not any(name in line and words in line for line in self.log()[since:].splitlines()):
            assert time.monotonic() < deadline, f"{name} does not say {words!r}: {self.stderr()}"
            await self.nobody_ends(LOOK_SECONDS)

    def log(self) -> str:
        """What all nodes have logged."""
        return self.errors.read_text()

    async def told(self) -> str:
        """How everything stands, for whoever looks for what went wrong."""
        try:
            return f"{await self.status()}; {self.stderr()}"
        except AntiphonError as error:
            return f"{error!r}; {self.stderr()}"

    # -- what happens to them --------------------------------------------------

    def kill(self, *names: str) -> None:
        """End nodes as a power cut would, all at once."""
        for name in names:
            self.nodes[name].send(signal.SIGKILL)
        for name in names:
            self.nodes[name].wait_end()

    def pause(self, name: str) -> None:
        self.nodes[name].send(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.nodes[name].send(signal.SIGCONT)

    def faults(self, rules: str) -> None:
        """Rules for all nodes, in force within a moment."""
        fresh = self.fault_file.with_suffix(".new")
        fresh.write_text(rules)
        fresh.rename(self.fault_file)

    def partition(self, name: str, *, hears: bool = False, is_heard: bool = False) -> None:
        """Cut a node off from all others, in both directions or in one."""
        number = self.spec.node(name).number
        rules = [] if hears else [f"*>{number} cut"]
        rules += [] if is_heard else [f"{number}>* cut"]
        self.faults("\n".join(rules))

    def heal(self) -> None:
        self.faults("")

    def folder_of(self, name: str) -> Path:
        """Where a node keeps its data."""
        return self.data / self.spec.node(name).data

    def wipe(self, name: str) -> None:
        """The disk of a node that has ended is replaced by an empty one."""
        assert not self.nodes[name].is_alive
        for path in self.folder_of(name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def flip(self, name: str, seed: int) -> str:
        """Change a bit that a node which has ended has written; says which."""
        assert not self.nodes[name].is_alive
        chance = random.Random(seed)
        # The kind first: there are far more pages of segments than of anything else.
        kind = chance.choice(("segment-*", "checkpoint-*", "superblock"))
        files = sorted(self.folder_of(name).glob(kind)) or sorted(self.folder_of(name).glob("segment-*"))
        places = [(path, page) for path in files for page in _used_pages(path)]
        assert places, f"{name} has written nothing"
        path, page = chance.choice(places)
        content = path.read_bytes()[page : page + PAGE]
        offset = page + chance.choice([at for at, byte in enumerate(content) if byte])
        with path.open("r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        return f"{path.name} at byte {offset}"

    async def put_on_small_disk(self, name: str, mib: int) -> None:
        """Move the data of a node that has ended to a file system of this size; needs root."""
        await asyncio.to_thread(self._put_on_small_disk, name, mib)

    def _put_on_small_disk(self, name: str, mib: int) -> None:
        assert not self.nodes[name].is_alive
        folder = self.folder_of(name)
        aside = folder.with_name(folder.name + ".aside")
        folder.rename(aside)
        folder.mkdir(mode=0o700)
        mount_small(folder, mib)
        self._mounted.append(folder)
        folder.chmod(0o700)
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        shutil.rmtree(aside)

    def fill_disk(self, name: str) -> Path:
        """Take all the space that is left on the disk of a node; removing the file gives it back."""
        filler = self.folder_of(name) / "filler"
        piece = 1 << 20
        with filler.open("wb") as file, contextlib.suppress(OSError):
            # In pieces: the node takes of it too, meanwhile.
            while True:
                os.posix_fallocate(file.fileno(), file.tell(), piece)
                file.seek(piece, os.SEEK_CUR)
        return filler

    # -- the end ---------------------------------------------------------------

    def __enter__(self) -> ClusterProcess:
        try:
            return self.start()
        except BaseException:
            self.is_kept = True
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_kept = self.is_kept or kind is not None
        self.close()

    def close(self) -> None:
        """End everything, in no order at all."""
        for life in self.nodes.values():
            life.send(signal.SIGKILL)
        if self._up is not None:
            # Its children end with it, those too that it has not told us of.
            self._up.kill()
            self._up.wait()
            if self._up.stdout is not None:
                self._up.stdout.close()
        for name, life in list(self.nodes.items()):
            life.wait_end()
            self._forget(name)
        for folder in self._mounted:
            unmount(folder)
        self._mounted.clear()
        if not self.is_kept:
            # Pytest keeps the folders of several runs, and these are large.
            shutil.rmtree(self.data, ignore_errors=True)


def _used_pages(path: Path) -> list[int]:
    content = path.read_bytes()
    return [at for at in range(0, len(content), PAGE) if any(content[at : at + PAGE])]


def _primaries(status: Status, channel: str | None = None) -> list[str]:
    return [row["name"] for row in status["nodes"] if row["is_primary"] and channel in (None, row["channel"])]
