"""What all tests share: how Hypothesis draws, and how a run is repeated.

`make test` draws the same examples every time, so that a red run is red for
everybody. `make test-long` looks further: more examples, drawn from a seed
that the header prints together with the words that repeat it.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from antiphon.runtime.cluster_data import PORTS_VARIABLE, ports_to_choose_from

PORT_SHARES = 8
"""Into how many parts the ports are divided, one for each process that runs tests."""

ALONE = {
    f"test_{name}.py" for name in ("exactly_once", "source_check", "source_cluster", "tutorial", "wheel")
}
"""Files of tests/spark that do not need the session of Spark that the others share."""

# No deadlines: on a busy machine they blame whichever example was unlucky.
settings.register_profile("quick", derandomize=True, deadline=None, print_blob=True, max_examples=60)
settings.register_profile("long", deadline=None, print_blob=True, max_examples=500)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed ourselves when nobody did, since only a seed we know can be printed."""
    # A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-profile") == "long" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


class Shares(LoadFileScheduling):  # type: ignore[misc]
    """Files are shared out whole, since their tests share servers; those that share a session of Spark
    stay together, since starting one takes longer than most of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        folder, _, name = file.rpartition("/")
        return folder if folder.endswith("tests/spark") and name not in ALONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    return Shares(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where files are shared out, those of seeds lie among those that start processes.

    The one kind needs the processor and nothing else, the other mostly waits. Seeds run in processes that
    are nice to others (`tests/sim/seeds.py`).
    """
    if not hasattr(config, "workerinput"):
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    here = Path(__file__).parent
    seeds = [path for path in files if path.parent == here / "sim"]
    waiting = [path for path in files if path.is_relative_to(here / "faults")]
    waiting += [path for path in files if path.is_relative_to(here / "integration")]
    waiting += [path for path in files if path.is_relative_to(here / "acceptance")]
    order = [*waiting, *(path for path in files if path not in seeds and path not in waiting)]
    step = len(waiting) // len(seeds) + 1 if seeds else 1
    for number, path in enumerate(seeds):
        order.insert(number * step, path)
    items[:] = [item for path in order for item in files[path]]


@pytest.fixture(scope="session", autouse=True)
def _own_run_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Word of failed syncs is left here, by processes that tests start too, and not on the machine."""
    os.environ["ANTIPHON_RUN_DIR"] = str(tmp_path_factory.mktemp("run"))
    yield
    del os.environ["ANTIPHON_RUN_DIR"]


@pytest.fixture(scope="session", autouse=True)
def _own_ports(worker_id: str) -> Iterator[None]:
    """Processes that run tests side by side do not give a node's ports away while it is stopped.

    Several runs on one machine are kept apart by ANTIPHON_PORTS, which is divided in the same way.
    """
    given = os.environ.get(PORTS_VARIABLE)
    number = int(worker_id.removeprefix("gw")) if worker_id.startswith("gw") else 0
    ports = ports_to_choose_from()
    share = len(ports) // PORT_SHARES
    first = ports[number % PORT_SHARES * share]
    os.environ[PORTS_VARIABLE] = f"{first}-{first + share - 1}"
    yield
    if given is None:
        del os.environ[PORTS_VARIABLE]
    else:
        os.environ[PORTS_VARIABLE] = given


def pytest_report_header(config: pytest.Config) -> str:
    profile = config.getoption("--hypothesis-profile") or "quick"
    if profile == "quick":
        return "hypothesis: profile quick, the same examples every time"
    seed = config.getoption("--hypothesis-seed")
    return f"hypothesis: repeat this run with --hypothesis-profile={profile} --hypothesis-seed={seed}"
