"""The pages of docs/reference that are made from the code: `make generate` writes them, a test compares them.

The words of a page are those of the code: the descriptions and options of the commands, the docstrings of the
errors, the defaults of the settings.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill
from typing import Final

from antiphon.bus import messages
from antiphon.bus.schema import KINDS, Kind
from antiphon.cli.main import COMMANDS, build_parser
from antiphon.cli.options import DEFAULT_URL
from antiphon.errors import AntiphonError
from antiphon.events import KINDS as KINDS_OF_EVENTS
from antiphon.message_manager.state.destinations.settings import QUEUE_DEFAULTS, TOPIC_DEFAULTS

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
LINE_MAX: Final = 110

COMMAND_LINE_HEAD = f"""\
# The command line

Made by `make generate` from what `antiphon COMMAND --help` says; a test compares the two. Options may stand
before, between and behind the other arguments.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; of `send`, every message is confirmed |
| 1 | failed: one sentence on standard error says why |
| 2 | usage: an unknown option or an impossible value |
| 3 | timeout: of `receive --count`, fewer messages came; of `send`, no server let it in, or the messages \
were not confirmed, in time |
| 130 | interrupted by Ctrl-C |

Output for people and JSON go to standard output, everything else to standard error. A progress line is drawn
only on a terminal.

## Options of every command that talks to a server

| option | meaning |
|---|---|
| `--url URL` | the address of the server, such as `antiphon://host:7420,other:7420`; if not given \
`ANTIPHON_URL`, else `{DEFAULT_URL}` |
| `--tls-ca FILE`, `--tls-cert FILE`, `--tls-key FILE` | for urls with `antiphons://`: the CA of the \
servers' certificates, instead of those of this machine; the certificate of this client and its key, if the \
servers ask for one. If not given `ANTIPHON_TLS_CA`, `ANTIPHON_TLS_CERT`, `ANTIPHON_TLS_KEY` |
| `--json` | JSON instead of text for people |
"""

ERRORS_HEAD = """\
# Errors

Made by `make generate` from `src/antiphon/errors.py`; a test compares the two.

Every error that Antiphon raises on purpose derives from `antiphon.AntiphonError`. Its `code` is stable: the
code goes on the wire and into logs, and begins with the code of the parent, so that a client which does not
know a newer code still knows its family. `str(error)` says in a sentence what is now true.

| code | class | meaning |
|---|---|---|
"""

PLACES = ("channel", "channels")
"""Options that say where a destination is to live. They cannot be changed."""

SETTINGS_HEAD = """\
# Settings of destinations

Made by `make generate` from the settings and the options of `antiphon admin create`; a test compares them.

Settings are given when a destination is made (`antiphon admin create`, `connection.admin().create`) or
changed while it is used (`change`), by the same names: `dedup_window` is `--dedup-window`. A destination that
is made by its first use has the defaults, and keeps them when a later version has others.

| setting | queue | topic | meaning |
|---|---|---|---|
"""

MESSAGES_HEAD = """\
# Messages of the bus

Made by `make generate` from `src/antiphon/bus/messages.py`; a test compares the two.

A message is a header (`src/antiphon/bus/codec.py`) and its fields, in the order in which they stand here. The
formats of fields are those of `src/antiphon/wire/layout.py` and of the rows in `messages.py`.
"""

EVENTS_HEAD = """\
# Events

Made by `make generate` from `src/antiphon/events.py`; a test compares the two.

A node logs events to a file of its own, and publishes them to `topic:_LOG`
([events](../operating/events.md)). The codes are stable. An event is a message: the sentence is its body, the
values in braces are properties, and so are `code`, `severity` (`info`, `warning`, `error`), `node` (the node
that logged the event), `channel` (empty if the event is of no channel) and `time` (milliseconds since 1970).

| code | severity | sentence | meaning |
|---|---|---|---|
"""

# Told once at the head of the page.
_COMMON: Final = {
    "--url": "where the server is",
    "--json": "print JSON instead of text for people",
    **dict.fromkeys(("--tls-ca", "--tls-cert", "--tls-key"), "for urls with antiphons://"),
}
"""With the beginning of their help: an option of the same name may be another one."""

Parsers = dict[str, argparse.ArgumentParser]


def command_line() -> str:
    """The page of the commands."""
    commands = _parsers_of(build_parser())
    assert commands.keys() == set(COMMANDS), "a command has the name of its module"
    return "\n".join([COMMAND_LINE_HEAD, *_sections(commands, "##")]).rstrip() + "\n"


def errors() -> str:
    """The page of the errors."""
    rows = [
        f"| `{error.code}` | `{error.__name__}` | {_cell(_words_of(error))} |"
        for error in _tree(AntiphonError)
    ]
    return ERRORS_HEAD + "\n".join(rows) + "\n"


def events() -> str:
    """The page of the events."""
    rows = [
        f"| `{kind.code}` | {kind.severity.word} | {_cell(kind.template)} | {_cell(kind.meaning)} |"
        for kind in KINDS_OF_EVENTS.values()
    ]
    return EVENTS_HEAD + "\n".join(rows) + "\n"


def settings() -> str:
    """The page of the settings of destinations."""
    create = _parsers_of(_parsers_of(build_parser("admin"))["admin"])["create"]
    options = {action.dest: action for action in create._actions}
    rows = []
    for name in sorted(QUEUE_DEFAULTS.keys() | TOPIC_DEFAULTS.keys()):
        queue, topic = [
            f"`{json.dumps(defaults[name])}`" if name in defaults else "–"
            for defaults in (QUEUE_DEFAULTS, TOPIC_DEFAULTS)
        ]
        rows.append(f"| `{name}` | {queue} | {topic} | {_cell(_help_of(options[name]))} |")
    rows += [f"| `{name}` | – | – | {_cell(_help_of(options[name]))} |" for name in PLACES]
    return SETTINGS_HEAD + "\n".join(rows) + "\n"


def _sections(parsers: Parsers, level: str, before: str = "antiphon ") -> Iterator[str]:
    for name, parser in parsers.items():
        actions = [action for action in parser._actions if _is_shown(action)]
        words = [before + name, *[_name_of(action) for action in actions if not action.option_strings]]
        yield f"{level} `{' '.join(words)}`\n"
        yield from _paragraphs(parser.description or "")
        rows = [f"| {_option_of(action)} | {_cell(_help_of(action))} |" for action in actions]
        if rows:
            yield "\n".join(["| argument | meaning |", "|---|---|", *rows]) + "\n"
        yield from _paragraphs(parser.epilog or "")
        yield from _sections(_parsers_of(parser), level + "#", f"{before}{name} ")


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs as lines of a document; an indented one is a piece of code and stays as it is."""
    _, colon, rest = text.partition("`: ")
    text = rest[:1].upper() + rest[1:] if colon and text.startswith("`antiphon ") else text
    for paragraph in inspect.cleandoc(text).split("\n\n") if text else ():
        yield (paragraph if paragraph.startswith("    ") else _filled(paragraph)) + "\n"


def _filled(paragraph: str) -> str:
    return fill(" ".join(paragraph.split()), LINE_MAX, break_on_hyphens=False, break_long_words=False)


def _parsers_of(parser: argparse.ArgumentParser) -> Parsers:
    """The commands of a parser, with what the list of commands says where they have no more to say."""
    found: Parsers = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            short = {choice.dest: choice.help for choice in action._choices_actions}
            for name, one in action.choices.items():
                one.description = one.description or _sentence(short[name] or "")
                found[name] = one
    return found


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _is_shown(action: argparse.Action) -> bool:
    is_hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not (is_hidden or _is_common(action) or action.help == argparse.SUPPRESS)


def _is_common(action: argparse.Action) -> bool:
    usual = _COMMON.get(action.option_strings[0]) if action.option_strings else None
    return usual is not None and str(action.help).startswith(usual)


def _name_of(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest.upper())
    optional = {argparse.OPTIONAL: f"[{name}]", argparse.ZERO_OR_MORE: f"[{name} ...]"}
    return optional.get(str(action.nargs), name)


def _option_of(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_name_of(action)}`"
    value = ""
    if action.choices is not None:
        value = " " + "|".join([str(choice) for choice in action.choices])
    elif action.nargs != 0:
        value = f" {action.metavar or action.dest.upper()}"
        value = f" [{value.strip()}]" if action.nargs == argparse.OPTIONAL else value
    return ", ".join([f"`{option}{value}`" for option in action.option_strings]).replace("|", "\\|")


def _help_of(action: argparse.Action) -> str:
    values = vars(action) | {"prog": "antiphon"}
    return (action.help or "") % values


def _words_of(error: type[AntiphonError]) -> str:
    """What the docstring says, without its examples."""
    paragraphs = (inspect.getdoc(error) or "").split("\n\n")
    return " ".join([one for one in paragraphs if not one.startswith(">>>")])


def _tree(root: type[AntiphonError]) -> Iterator[type[AntiphonError]]:
    """Those of `errors.py`; a face of the client, or a command, may have its own form of one."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == root.__module__:
            yield from _tree(child)


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def _message(kind: Kind) -> str:
    """What the class of a message says of itself."""
    message = kind.message
    words = " ".join((inspect.getdoc(message) or "").split("\n\n")[0].split())
    listeners = sorted([one.value for one in kind.listeners])
    listeners += sorted([f"{one.value} (some of them)" for one in kind.sometimes])
    fields = getattr(message, "__annotations__", {}) or messages.Data.__bases__[0].__annotations__
    if kind.lane is None:
        lane = "to one node"
    else:
        lane = f"lane {kind.lane.name}" + (", replicas may hear it late" if kind.is_late else "")
    if kind.is_periodic:
        lane += ", at intervals"
    vote = " It counts only from the disk that the configuration lists." if kind.is_vote else ""
    lines = [
        f"## {kind.number} {message.__name__}",
        "",
        fill(words + vote, LINE_MAX),
        "",
        fill(f"- Heard by: {', '.join(listeners)}; {lane}.", LINE_MAX, subsequent_indent="  "),
        fill("- Fields: " + ", ".join([f"{name} {_format_of(one)}" for name, one in fields.items()]) + ".",
             LINE_MAX, subsequent_indent="  "),
    ]  # fmt: skip
    return "\n".join(lines)


def _format_of(annotation: object) -> str:
    """The name of a format; what a tuple is annotated with comes as a reference."""
    return getattr(annotation, "__forward_arg__", str(annotation)).removesuffix("Field")


def messages_of_bus() -> str:
    """The page of the messages of the bus."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.number)
    return "\n".join([MESSAGES_HEAD, *[_message(kind) + "\n" for kind in kinds]]).rstrip() + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "command-line.md": command_line,
    "errors.md": errors,
    "events.md": events,
    "messages.md": messages_of_bus,
    "settings.md": settings,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), encoding="utf-8")
