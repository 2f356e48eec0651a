"""Run fuzz targets: `python -m fuzz [TARGET ...] [--seconds N] [FILE ...]`.

With atheris (`pip install 'antiphon[fuzz]'`) coverage guides the search, one process for each target.
Without it, spoiled seeds and chance have to do: slower to find anything, but better than nothing.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LENGTH_MAX = 4096
SECONDS_PER_INPUT = 5
MEMORY_MIB = 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("what", nargs="*", help="targets, all if none is named; or one target and files")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--corpus", type=Path, default=None, help="keep what was found here, for the next run"
    )
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is None:
        from fuzz.targets import TARGETS
    else:
        with atheris.instrument_imports(include=["antiphon"]):
            from fuzz.targets import TARGETS
    names = [name for name in options.what if name in TARGETS] or list(TARGETS)
    files = [Path(name) for name in options.what if name not in TARGETS]
    if files:
        for path in files:
            TARGETS[names[0]].check(path.read_bytes())
        return 0
    if len(names) > 1:
        return _each_by_itself(names, options)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1, 1 << 31)
    target = TARGETS[names[0]]
    print(f"fuzz {names[0]}: {options.seconds} s, seed {seed}", file=sys.stderr)
    if atheris is None:
        return _by_chance(target.check, target.seeds(), options.seconds, random.Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        corpus = options.corpus / names[0] if options.corpus else Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(data)
        atheris.Setup(
            [
                "fuzz",
                str(corpus),
                f"-max_total_time={options.seconds}",
                f"-max_len={LENGTH_MAX}",
                f"-timeout={SECONDS_PER_INPUT}",
                f"-rss_limit_mb={MEMORY_MIB}",
                f"-seed={seed}",
                "-print_final_stats=1",
            ],
            target.check,
        )
        atheris.Fuzz()
    return 0


def _each_by_itself(names: list[str], options: argparse.Namespace) -> int:
    """The engine ends its process when it ends."""
    more = ["--seed", str(options.seed)] if options.seed is not None else []
    more += ["--corpus", str(options.corpus)] if options.corpus is not None else []
    failed = [
        name
        for name in names
        if subprocess.run(
            [sys.executable, "-m", "fuzz", name, "--seconds", str(options.seconds), *more]
        ).returncode
    ]
    print("found something in: " + ", ".join(failed) if failed else "nothing found", file=sys.stderr)
    return 1 if failed else 0


def _by_chance(check: object, seeds: list[bytes], seconds: float, chance: random.Random) -> int:
    assert callable(check)
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data) + 1)
            piece = chance.choice(
                [
                    b"\0",
                    b"\xff",
                    b"\1",
                    b"\x80",
                    chance.randbytes(chance.randint(0, 8)),
                    chance.choice(seeds)[:64],
                ]
            )
            data[at : at + chance.randint(0, 8)] = piece
        count += 1
        try:
            check(bytes(data))
        except BaseException:
            path = Path(f"crash-{abs(hash(bytes(data))):016x}")
            path.write_bytes(data)
            print(f"after {count} inputs: {path}", file=sys.stderr)
            raise
    print(f"{count} inputs, nothing found", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
