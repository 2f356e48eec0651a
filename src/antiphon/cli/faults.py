"""`antiphon faults`: makes the network between the nodes of a cluster misbehave, for tests.

The rules are in a file that nodes started with `--faults FILE` look at several times a second. A rule is
added behind those that are there, and of the rules for a pair of nodes the last one counts. Without an option
the rules are shown. Nodes go by their numbers, or, with `--config`, by the names that the cluster's file
gives them. Never use this on a cluster in production; docs/operating/faults.md has more.

    antiphon faults rules.txt --drop 0.3 --duplicate 0.1      three of ten are lost, one of ten comes twice
    antiphon faults rules.txt --delay 5..20 --from 1 --to 2   datagrams from node 1 to node 2 are late
    antiphon faults rules.txt --partition 1:2,3               node 1 is alone
    antiphon faults rules.txt --partition 1:2,3 --one-way     node 1 hears the others, and they do not hear it
    antiphon faults rules.txt --clear                         the network is well again
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from antiphon.errors import LocalError
from antiphon.transport.faults import CUT, Fault, FaultRules

ANY: Final = "*"
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_FAULTS: Final = ("drop", "duplicate", "reorder", "delay")

Sides = list[list[str]]


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "faults",
        help="make the network between nodes misbehave",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the rules; made if it is not there")
    for name, what in (("drop", "are lost"), ("duplicate", "come twice"), ("reorder", "are overtaken")):
        parser.add_argument(f"--{name}", type=_fault(name), metavar="P", help=f"so many of 1 {what}")
    parser.add_argument("--delay", type=_fault("delay"), metavar="MS", help="so late, 5 or between 5..20 ms")
    parser.add_argument(
        "--from", dest="senders", type=_nodes, metavar="NODES", help="only what these say: 1 or 1,2"
    )
    parser.add_argument("--to", dest="receivers", type=_nodes, metavar="NODES", help="only what these hear")
    parser.add_argument(
        "--partition", type=_sides, metavar="SIDES", help="nothing between the sides, such as 1:2,3"
    )
    parser.add_argument(
        "--one-way",
        action="store_true",
        help="with --partition: only what earlier sides say is not heard",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="cluster.toml, which knows nodes by name")
    parser.add_argument("--seed", type=int, help="which are lost, not how many")
    parser.add_argument("--clear", action="store_true", help="forget the rules that are there")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if problem := _contradiction(arguments):
        print(f"antiphon: {problem}", file=sys.stderr)
        return 2
    path: Path = arguments.file
    names = _names(arguments.config)
    added = _added(arguments, names)
    if added or arguments.clear:
        kept = "" if arguments.clear else _read(path)
        if kept and not kept.endswith("\n"):
            kept += "\n"
        text = kept + "".join(f"{line}\n" for line in added)
        rules = _parse(path, text)
        _write(path, text)
    else:
        rules = _parse(path, _read(path))
    print(json.dumps(_as_json(rules)) if arguments.json else "\n".join(_in_words(rules, names)))
    return 0


# -- from options to rules ---------------------------------------------------------------------------------


def _contradiction(arguments: argparse.Namespace) -> str:
    """What is wrong with the options together, if anything."""
    has_fault = any(getattr(arguments, name) is not None for name in _FAULTS)
    if (arguments.senders or arguments.receivers) and not has_fault:
        return "--from and --to say for whom; say what too: --drop, --duplicate, --reorder or --delay"
    if arguments.one_way and not arguments.partition:
        return "--one-way is for --partition"
    if arguments.seed is not None and arguments.seed < 0:
        return "a seed is a number from 0 on"
    return ""


def _names(config: Path | None) -> dict[str, int]:
    """The names of the cluster's nodes, if its file was given."""
    if config is None:
        return {}
    from antiphon.runtime.cluster_data import load_cluster

    return {node.name: node.number for node in load_cluster(config).nodes}


def _number(node: str, names: dict[str, int]) -> str:
    if node == ANY or node.isdecimal():
        return node
    if not names:
        raise LocalError(f"{node!r} is no number; names of nodes need --config cluster.toml")
    if node not in names:
        raise LocalError(f"there is no node {node!r}; there are {', '.join(names)}")
    return str(names[node])


def _added(arguments: argparse.Namespace, names: dict[str, int]) -> list[str]:
    """The rules that the options stand for, in the format of the file."""

    def number(nodes: list[str]) -> list[str]:
        return [_number(node, names) for node in nodes]

    lines = [] if arguments.seed is None else [f"seed={arguments.seed}"]
    faults = [fault for name in _FAULTS if (fault := getattr(arguments, name)) is not None]
    if faults:
        for sender in number(arguments.senders or [ANY]):
            for receiver in number(arguments.receivers or [ANY]):
                lines.append(" ".join([f"{sender}>{receiver}", *faults]))
    if arguments.partition:
        how = ">" if arguments.one_way else "-"
        for one_side, other_side in combinations(map(number, arguments.partition), 2):
            lines += [f"{one}{how}{other} cut" for one in one_side for other in other_side]
    return lines


def _fault(name: str) -> Any:
    """An option's type: one fault with its value, as in the file."""

    def read(text: str) -> str:
        fault = f"{name}={text}"
        if fault.split() != [fault] or set(fault) & set(";#"):
            raise argparse.ArgumentTypeError(f"{text!r} is more than one value")
        try:
            FaultRules.parse(fault)
        except LocalError as error:
            raise argparse.ArgumentTypeError(error.text) from None
        return fault

    return read


def _nodes(text: str) -> list[str]:
    nodes = text.split(",")
    for node in nodes:
        if not (node == ANY or _NODE.fullmatch(node)):
            raise argparse.ArgumentTypeError(f"{node!r} is no node")
    return nodes


def _sides(text: str) -> Sides:
    sides = [_nodes(side) for side in text.split(":")]
    listed = [node for side in sides for node in side]
    if len(sides) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is one side; say, for example, 1:2,3")
    if len(set(listed)) < len(listed) or ANY in listed:
        raise argparse.ArgumentTypeError("a node of a partition is on one side")
    return sides


# -- the file ----------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise LocalError(f"{path} is no text") from None


def _parse(path: Path, text: str) -> FaultRules:
    try:
        return FaultRules.parse(text)
    except LocalError as error:
        raise LocalError(f"{path}: {error.text}; nothing was changed") from None


def _write(path: Path, text: str) -> None:
    """Replace the file at once: a node reads the old rules or the new ones."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


# -- what is shown -----------------------------------------------------------------------------------------


def _in_words(rules: FaultRules, names: dict[str, int]) -> list[str]:
    if not rules.rules:
        return ["no faults"]
    lines = [f"seed {rules.seed}; of the rules for a pair of nodes the last one counts"]
    who: dict[int | None, str] = {number: name for name, number in names.items()} | {None: "any"}
    for sender, receiver, fault in rules.rules:
        pair = f"{who.get(sender, sender)} -> {who.get(receiver, receiver)}"
        lines.append(f"  {pair:<14} {_what(fault)}")
    return lines


def _what(fault: Fault) -> str:
    if fault == CUT:
        return "cut"
    shares = [f"{name} {getattr(fault, name):g}" for name in ("drop", "duplicate", "reorder")]
    words = [share for share in shares if not share.endswith(" 0")]
    low, high = fault.delay_ms
    if high:
        words.append(f"delay {low:g} ms" if low == high else f"delay {low:g} to {high:g} ms")
    return ", ".join(words) or "well"


def _as_json(rules: FaultRules) -> dict[str, Any]:
    return {
        "seed": rules.seed,
        "rules": [
            {
                "from": sender,
                "to": receiver,
                "drop": fault.drop,
                "duplicate": fault.duplicate,
                "reorder": fault.reorder,
                "delay_ms": list(fault.delay_ms),
            }
            for sender, receiver, fault in rules.rules
        ],
    }
