"""The rules for names of destinations, subscriptions and properties.

A destination is written `queue:orders` or `topic:prices`; the part after the colon has 1 to 255 bytes of
UTF-8. A property name is a JMS identifier, so that every property can stand in a selector.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, cast

from antiphon.errors import InvalidName

NAME_BYTES_MAX: Final = 255

DEAD_QUEUE_NAME: Final = "queue:_DMQ"
"""The queue of dead messages: every channel has a part of it."""

LOG_TOPIC_NAME: Final = "topic:_LOG"
"""The topic of the events that nodes log: every channel has a part of it."""

IN_PARTS: Final = (DEAD_QUEUE_NAME, LOG_TOPIC_NAME)
"""The destinations that every channel has a part of."""

CHANNELS_MAX: Final = 64
"""The most channels of one destination."""

TEMPORARY: Final = "_TEMP"
"""How the names of temporary destinations begin: `queue:_TEMP.a.4711` lives in channel `a`, under id 4711."""

FAMILY: Final = "_MATCH"
"""How the names of families begin: `topic:_MATCH.glob.prices.*` is the topics with names that match."""

Match = Literal["glob", "regex"]
"""What a pattern of names is."""

MATCHES: Final[tuple[Match, ...]] = ("glob", "regex")

PATTERN_BYTES_MAX: Final = 240
PLAIN: Final = "antiphon"
SECURE: Final = "antiphons"
"""The schemes of urls: without TLS, and with it."""

DestinationKind = Literal["queue", "topic"]


class DestinationName(NamedTuple):
    """A destination as the application names it; `str` gives the spelling with the prefix."""

    kind: DestinationKind
    name: str

    @property
    def is_reserved(self) -> bool:
        """Is this one of the system's own? Clients can neither create those nor publish to them."""
        return is_reserved(self.name)

    @property
    def is_temporary(self) -> bool:
        """Does this live with the session that made it? No client can choose such a name."""
        return self.name.startswith(f"{TEMPORARY}.")

    @property
    def has_parts(self) -> bool:
        """Has every channel a part of this, without a placement?"""
        return str(self) in IN_PARTS or self.is_family

    @property
    def is_family(self) -> bool:
        """Are these the topics whose names match a pattern? Only consumers use such a name."""
        return self.kind == "topic" and self.name.startswith(f"{FAMILY}.")

    @property
    def can_be_chosen(self) -> bool:
        """May an application make a destination of this name?"""
        return not (self.is_reserved or self.is_temporary)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def spell_channels(channels: Sequence[str]) -> str:
    """How a placement and a part's setting name the channels of a destination, in their order."""
    return ",".join(channels)


def read_channels(placement: str) -> tuple[str, ...]:
    """The channels of a destination; of a spanning destination they are several.

    >>> read_channels("a,b")
    ('a', 'b')
    """
    return tuple(placement.split(","))


def spans(placement: str | None) -> bool:
    """Has the destination with this placement a part in each of several channels?"""
    return placement is not None and "," in placement


def is_reserved(name: str) -> bool:
    return name.startswith("_") and not name.startswith(f"{TEMPORARY}.")


def temporary_name(kind: DestinationKind, channel: str, id: int) -> str:
    """The name of a temporary destination; ids are never used twice in a channel, so neither are names."""
    return f"{kind}:{TEMPORARY}.{channel}.{id}"


def channel_of_temporary(name: DestinationName) -> str:
    """The channel in which a temporary destination of this name lives, if anywhere."""
    return name.name.removeprefix(f"{TEMPORARY}.").rpartition(".")[0]


def family_name(match: str, pattern: str) -> str:
    """The name of the topics that match a pattern such as `topic:prices.*`; raises InvalidName.

    Whether the pattern can be understood is not looked at here.
    """
    if match not in MATCHES:
        raise InvalidName(f"match is 'glob' or 'regex'; it was {_shown(str(match))}")
    if not isinstance(pattern, str):
        raise InvalidName(f"a pattern is of type {type(pattern).__name__}, not str")
    kind, colon, name = pattern.partition(":")
    if kind == "queue" and colon:
        raise InvalidName(
            f"{_shown(pattern)} is a pattern of queues: only topics are subscribed to by a pattern"
        )
    if kind != "topic" or not colon:
        raise InvalidName(f"the pattern {_shown(pattern)} does not start with topic:")
    text = f"topic:{FAMILY}.{match}.{name}"
    parse_destination(text)
    return text


def pattern_of(family: str) -> tuple[str, str]:
    """The way of matching, and the pattern without `topic:`, in the name of a family."""
    _, match, pattern = family.split(".", 2)
    return match, pattern


def check_stored(name: DestinationName) -> None:
    """Raise InvalidName for the topics that match a pattern: only consumers take them together."""
    if name.is_family:
        raise InvalidName(f"{name} stands for the topics that match a pattern, and is only consumed")


def shown_name(name: str) -> str:
    """A name for people; that of a family as `topic:prices.* (glob)`."""
    if not name.startswith(f"topic:{FAMILY}."):
        return name
    match, pattern = pattern_of(name)
    return f"topic:{pattern} ({match})"


def _complaint_of_family(name: str) -> str | None:
    match, dot, pattern = name.removeprefix(f"{FAMILY}.").partition(".")
    if match not in MATCHES or not dot:
        return "is no name of topics that match a pattern"
    size = len(pattern.encode())
    if not 1 <= size <= PATTERN_BYTES_MAX:
        return f"has a pattern of {size} bytes; 1 to {PATTERN_BYTES_MAX} are allowed"
    return _complaint(pattern)


def parse_destination(text: str) -> DestinationName:
    """Parse `queue:orders`; raise InvalidName, saying which rule is broken.

    >>> parse_destination("queue:orders") DestinationName(kind='queue', name='orders')
    """
    if not isinstance(text, str):
        raise InvalidName(f"a destination is of type {type(text).__name__}, not str")
    kind, colon, name = text.partition(":")
    if not colon or kind not in ("queue", "topic"):
        raise InvalidName(f"destination {_shown(text)} starts with neither queue: nor topic:")
    complaint = _complaint(name)
    if complaint:
        raise InvalidName(f"destination {_shown(text)} {complaint}")
    parsed = DestinationName(kind=cast(DestinationKind, kind), name=name)
    if parsed.is_family:
        complaint = _complaint_of_family(name)
        if complaint:
            raise InvalidName(f"destination {_shown(text)} {complaint}")
    elif "*" in name or "?" in name:
        # A literal name would wait for messages that no client sends to it.
        raise InvalidName(
            f"destination {_shown(text)} has a wildcard: consumers take the topics that match a pattern with "
            "match='glob' or match='regex', and no name has one"
        )
    return parsed


def check_subscription_name(name: object) -> None:
    """Raise InvalidName unless a subscription may be called so; the rules are those of destinations."""
    if not isinstance(name, str):
        raise InvalidName(f"the name of a subscription is of type {type(name).__name__}, not str")
    complaint = _complaint(name)
    if complaint:
        raise InvalidName(f"subscription {_shown(name)} {complaint}")


def _complaint(name: str) -> str | None:
    """The rule of names that this one breaks."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "has characters that UTF-8 cannot express"
    if not 1 <= size <= NAME_BYTES_MAX:
        return f"has a name of {size} bytes; 1 to {NAME_BYTES_MAX} are allowed"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "has a control character in its name"
    if name != name.strip():
        return "has whitespace at an end of its name"
    if not unicodedata.is_normalized("NFC", name):
        # Not repaired in silence: the name would come back other than it was given.
        return "is not in Unicode normal form NFC"
    return None


RESERVED_WORDS: Final = frozenset(
    ("NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE")
)
_PLAIN_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")

# Java's isJavaIdentifierStart and isJavaIdentifierPart by Unicode category: letters, letter
# numbers, currency signs and connectors; then digits and combining marks too.
_START_CATEGORIES: Final = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"))
_PART_CATEGORIES: Final = _START_CATEGORIES | {"Nd", "Mn", "Mc"}


@lru_cache(maxsize=4096)
def property_name_complaint(name: str) -> str | None:
    """The rule of property names that this one breaks, or None. Few names, asked for very often."""
    if len(name) > NAME_BYTES_MAX or len(name.encode(errors="replace")) > NAME_BYTES_MAX:
        return f"is longer than {NAME_BYTES_MAX} bytes"
    if not _PLAIN_IDENTIFIER.fullmatch(name) and not _is_unicode_identifier(name):
        return "is not an identifier (a letter, _ or $, then letters, digits, _ or $)"
    if name.upper() in RESERVED_WORDS:
        return "is a reserved word of selectors"
    return None


def _is_unicode_identifier(name: str) -> bool:
    categories = [unicodedata.category(character) for character in name]
    return (
        bool(categories)
        and categories[0] in _START_CATEGORIES
        and all(category in _PART_CATEGORIES for category in categories)
    )


def identifier_stop(text: str, at: int) -> int:
    """Where the identifier that begins at `at` ends; `at` itself when none begins there."""
    plain = _PLAIN_IDENTIFIER.match(text, at)
    stop = plain.end() if plain else at
    while stop < len(text):
        categories = _PART_CATEGORIES if stop > at else _START_CATEGORIES
        if unicodedata.category(text[stop]) not in categories:
            break
        stop += 1
    return stop


def check_property_name(name: object) -> None:
    """Raise InvalidName unless a property may be called so."""
    if not isinstance(name, str):
        raise InvalidName(f"a property name is of type {type(name).__name__}, not str")
    complaint = property_name_complaint(name)
    if complaint:
        raise InvalidName(f"property name {_shown(name)} {complaint}")


def _shown(name: str) -> str:
    """The name for an error text, cut where a hostile one would fill the log."""
    shown = repr(name)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
