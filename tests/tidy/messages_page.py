"""The reference page of the bus's messages, made from their classes.

python -m tests.tidy.messages_page > docs/reference/messages.md
"""

from __future__ import annotations

import inspect
from textwrap import fill

from antiphon.bus import messages
from antiphon.bus.schema import KINDS, Kind

LINE_MAX = 110
HEAD = """\
# Messages of the bus

Made from `src/antiphon/bus/messages.py` by `python -m tests.tidy.messages_page`; a test compares the two.

A message is a header (`src/antiphon/bus/codec.py`) and its fields, in the order in which they stand here. The
formats of fields are those of `src/antiphon/wire/layout.py` and of the rows in `messages.py`.
"""


def section(kind: Kind) -> str:
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
        fill("- Fields: " + ", ".join([f"{name} {format_of(one)}" for name, one in fields.items()]) + ".",
             LINE_MAX, subsequent_indent="  "),
    ]  # fmt: skip
    return "\n".join(lines)


def format_of(annotation: object) -> str:
    """The name of a format; what a tuple is annotated with comes as a reference."""
    return getattr(annotation, "__forward_arg__", str(annotation)).removesuffix("Field")


def page() -> str:
    """The whole page."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.number)
    return "\n".join([HEAD, *[section(kind) + "\n" for kind in kinds]]).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
