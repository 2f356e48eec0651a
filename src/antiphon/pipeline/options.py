"""Options: the options of the source and the sink, parsed and checked at once.

    OPT1  An unknown option is refused by its name, with the most likely one that was meant.
    OPT2  An impossible value is refused with one sentence that says what is possible.
    OPT3  No secret is held here: a password is named by its file, and read where a connection is made.

Whether destinations and channels exist is checked when they are asked for. Of the sink's options only the
names are here.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from antiphon.client.core.route import SCHEME, TLS_SCHEME, is_secure, parse_url
from antiphon.errors import AntiphonError, InvalidOption
from antiphon.names import parse_destination
from antiphon.pipeline.columns import ALL, Chosen, names_of
from antiphon.pipeline.offsets import BadOffset, Choice, Offset, parse_offset
from antiphon.tls import Tls

log = logging.getLogger("antiphon.pipeline")

TLS_OPTIONS: Final = ("tls.ca", "tls.certificate", "tls.key")
"""Paths of files, on the driver and on every executor. With one of them, or with `antiphons://` before the
servers, connections speak TLS."""

CONNECTION_OPTIONS: Final = ("servers", "user", "passwordFile", *TLS_OPTIONS, "timeout", "retryInterval")

SOURCE_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "match",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "columns",
    "bodyFormat",
    "includeBody",
    "includeAcks",
    "subscriptionName",
    "subscriptionLimit",
    "mode",
)

SINK_OPTIONS: Final = ("destination", "deliveryGuarantee", "txnAppId", "txnVersion", "queryId")

SPARK_OPTIONS: Final = ("path", "checkpointLocation", "queryName", "outputMode")
"""Spark's own keys among the options; they are none of ours."""

TIMEOUT_S: Final = 600.0
"""How long a cluster may be away: a rolling restart takes some minutes."""

RETRY_S: Final = 1.0

SUBSCRIPTION_LIMIT_S: Final = 86_400.0
SECONDS_MAX: Final = 366 * 86_400.0

NO_OPTIONS: Final = (
    ". No option came at all: of a table that CREATE TABLE … USING antiphon made, Spark does not pass the"
    " options on, so say SELECT … FROM table WITH (servers = '…', …), or use CREATE TEMPORARY VIEW"
)

Starting: TypeAlias = Literal["earliest", "latest"] | Offset
Mode: TypeAlias = Literal["read", "consume"]


class Given:
    """The options as they were given, whatever the case of their names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._spelled = {name.lower(): name for name in options}
        if "provider" in self._spelled:
            # CREATE TABLE … USING antiphon: Spark gives the table's properties, too, and each option twice.
            named = [name for name in self._spelled if f"option.{name}" in self._spelled]
            self._spelled = {name: self._spelled[name] for name in named}
        self._texts = {name: str(options[spelled]).strip() for name, spelled in self._spelled.items()}

    def refuse_unknown(self, known: Iterable[str], elsewhere: Iterable[str], side: str) -> None:
        """Raise InvalidOption if an option is none of `known`; `elsewhere` are those of the other side."""
        known = (*CONNECTION_OPTIONS, *known)
        accepted = {name.lower() for name in (*known, *SPARK_OPTIONS)}
        others = {name.lower(): name for name in elsewhere}
        for lower, spelled in self._spelled.items():
            if lower in accepted:
                continue
            if lower in others:
                other_side = "sink" if side == "source" else "source"
                raise InvalidOption(
                    f"{others[lower]} is an option of Antiphon's {other_side}, not of its {side}"
                )
            if lower == "password":
                raise InvalidOption(
                    "a password is not taken as an option, since options show up in plans and logs:"
                    " put it into a file and name that as passwordFile"
                )
            raise InvalidOption(f"Antiphon's {side} has no option {spelled}{_suggestion(lower, known)}")

    @property
    def names(self) -> list[str]:
        """The given names, in lower case."""
        return list(self._spelled.values())

    def text(self, name: str) -> str | None:
        """The text of an option; None if it was not given, or is empty."""
        return self._texts.get(name.lower()) or None

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        """One of a few words."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in words:
            raise InvalidOption(f"{name} is {_listed(words)}; it was {text!r}")
        return text.lower()

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        return self.word(name, ("true", "false"), str(default).lower()) == "true"

    def count(self, name: str) -> int | None:
        """A whole number of at least one; None if it was not given."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) < 1 << 63):
            raise InvalidOption(f"{name} is a whole number from 1 on; it was {text!r}")
        return int(text)

    def seconds(self, name: str, default: float, least: float, most: float) -> float:
        """A time in seconds."""
        text = self.text(name)
        if text is None:
            return default
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not least <= seconds <= most:
            raise InvalidOption(
                f"{name} is a number of seconds from {least:g} to {most:,.0f}; it was {text!r}"
            )
        return seconds


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The address of the cluster and the login, on the driver and on every executor."""

    servers: str
    user: str | None = None
    password_file: str | None = None
    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    has_tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    @classmethod
    def of(cls, given: Given) -> ConnectionOptions:
        servers = given.text("servers")
        if servers is None:
            raise InvalidOption(
                'servers is missing: where the cluster listens, such as "127.0.0.1:7420"'
                + ("" if given.names else NO_OPTIONS)
            )
        ca, certificate, key = (given.text(name) for name in TLS_OPTIONS)
        has_tls = is_secure(servers) or bool(ca or certificate or key)
        if has_tls and servers.startswith(SCHEME):
            raise InvalidOption(
                f"tls.* options are for servers with {TLS_SCHEME}, or with nothing, before them"
            )
        if key is not None and certificate is None:
            raise InvalidOption("tls.key is given without tls.certificate")
        bare = servers.removeprefix(SCHEME).removeprefix(TLS_SCHEME)
        servers = ",".join(part.strip() for part in bare.split(","))
        try:
            parse_url(SCHEME + servers)
        except AntiphonError:
            # The value is not repeated: it may contain a password.
            raise InvalidOption("servers is a list of host:port with commas between them") from None
        user, password_file = given.text("user"), given.text("passwordFile")
        if password_file is not None and user is None:
            raise InvalidOption("passwordFile is given without a user")
        return cls(
            servers,
            user,
            password_file,
            timeout_s=given.seconds("timeout", TIMEOUT_S, 0, SECONDS_MAX),
            retry_s=given.seconds("retryInterval", RETRY_S, 0.1, 3_600),
            has_tls=has_tls,
            tls_ca=ca,
            tls_certificate=certificate,
            tls_key=key,
        )

    @property
    def url(self) -> str:
        return (TLS_SCHEME if self.has_tls else SCHEME) + self.servers

    @property
    def texts(self) -> dict[str, str]:
        """The same as Spark takes them: options of the source and of the sink."""
        said = {
            "servers": self.url,
            "user": self.user,
            "passwordFile": self.password_file,
            "timeout": repr(self.timeout_s),
            "retryInterval": repr(self.retry_s),
            "tls.ca": self.tls_ca,
            "tls.certificate": self.tls_certificate,
            "tls.key": self.tls_key,
        }
        return {name: text for name, text in said.items() if text is not None}

    @property
    def tls(self) -> Tls | None:
        if not self.has_tls:
            return None
        return Tls(ca=self.tls_ca, certificate=self.tls_certificate, key=self.tls_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query wants to read. Exactly one of `names` and `pattern` is given.

    >>> SourceOptions.parse({"servers": "127.0.0.1:7420", "subscribe": "topic:orders"}).names
    ('topic:orders',)
    """

    connection: ConnectionOptions
    names: tuple[str, ...] = ()
    pattern: str | None = None
    match: Literal["glob", "regex"] = "regex"
    starting: Starting | None = None
    ending: Literal["latest"] | Offset = "latest"
    starting_ms: int | None = None
    ending_ms: int | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int | None = None
    fails_on_loss: bool = True
    wanted: Chosen = ALL
    has_acks: bool = False
    subscription: str | None = None
    subscription_limit_s: float = SUBSCRIPTION_LIMIT_S
    mode: Mode = "read"

    @property
    def choice(self) -> Choice:
        return Choice(self.names, self.pattern, self.match)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse and check everything that can be checked without asking the cluster."""
        given = Given(options)
        given.refuse_unknown(SOURCE_OPTIONS, SINK_OPTIONS, "source")
        parsed = cls(
            connection=ConnectionOptions.of(given),
            names=_names(given.text("subscribe")),
            pattern=given.text("subscribePattern"),
            match=given.word("match", ("glob", "regex"), "regex"),  # type: ignore[arg-type]
            starting=_starting(given.text("startingOffsets")),
            ending=_ending(given.text("endingOffsets")),
            starting_ms=_moment(given, "startingTimestamp"),
            ending_ms=_moment(given, "endingTimestamp"),
            rows_max=given.count("maxOffsetsPerTrigger"),
            bytes_max=given.count("maxBytesPerTrigger"),
            partitions_min=given.count("minPartitions"),
            fails_on_loss=given.flag("failOnDataLoss", True),
            wanted=_wanted(given),
            has_acks=given.flag("includeAcks", False),
            subscription=given.text("subscriptionName"),
            subscription_limit_s=given.seconds("subscriptionLimit", SUBSCRIPTION_LIMIT_S, 1, SECONDS_MAX),
            mode=given.word("mode", ("read", "consume"), "read"),  # type: ignore[arg-type]
        )
        parsed._check_together(given)
        return parsed

    def _check_together(self, given: Given) -> None:
        """Options that exclude or need each other."""
        if bool(self.names) == bool(self.pattern):
            raise InvalidOption(
                "one of subscribe and subscribePattern says what to read"
                + (
                    ", not both"
                    if self.names
                    else ': subscribe is a list such as "topic:orders,queue:alerts"'
                )
            )
        if self.pattern is not None and not _can_match(self.pattern, self.match):
            example = f"topic:{self.pattern}"
            raise InvalidOption(
                f"subscribePattern {self.pattern!r} can match nothing: it is held against the whole name,"
                f" which begins with topic: or queue:, as in {example!r}"
            )
        if given.text("match") is not None and self.pattern is None:
            raise InvalidOption("match says how to read subscribePattern, which is not given")
        for word in ("starting", "ending"):
            offsets, moment = f"{word}Offsets", f"{word}Timestamp"
            if given.text(offsets) is not None and given.text(moment) is not None:
                raise InvalidOption(f"one of {offsets} and {moment} may be given, not both")
        if self.starting_ms is not None and self.ending_ms is not None and self.starting_ms > self.ending_ms:
            raise InvalidOption("startingTimestamp lies behind endingTimestamp: nothing can be between them")
        if given.text("subscriptionLimit") is not None and self.subscription is None:
            raise InvalidOption("subscriptionLimit is of a subscriptionName, which is not given")
        if self.has_acks and self.subscription is None:
            raise InvalidOption(
                "includeAcks needs a subscriptionName: acknowledgements are kept only for who asks in a name"
            )
        if self.mode == "consume":
            self._check_consume()

    def _check_consume(self) -> None:
        if self.subscription is None:
            raise InvalidOption("mode=consume needs a subscriptionName: the queue is taken in that name")
        if len(self.names) != 1 or not self.names[0].startswith("queue:"):
            raise InvalidOption("mode=consume takes exactly one queue in subscribe")
        if self.starting not in (None, "earliest") or self.starting_ms is not None:
            raise InvalidOption(
                "mode=consume takes what the queue has from its first message on: startingOffsets is earliest"
            )

    def refuse_in_stream(self) -> None:
        """A stream has no end."""
        if self.ending != "latest" or self.ending_ms is not None:
            raise InvalidOption("endingOffsets and endingTimestamp are for spark.read; a stream has no end")

    def refuse_in_batch(self) -> None:
        """A batch read has no triggers, and does not report when it is done."""
        if self.mode == "consume":
            raise InvalidOption(
                "mode=consume is for readStream: a batch read never says that its rows are processed"
            )
        if self.rows_max is not None or self.bytes_max is not None:
            # As with other sources, so that a stream's options can be used to look at what it reads.
            log.warning("maxOffsetsPerTrigger and maxBytesPerTrigger do nothing for spark.read")
        if self.starting == "latest":
            raise InvalidOption("startingOffsets=latest is for readStream: a batch read would find nothing")


def _can_match(pattern: str, match: str) -> bool:
    """Could a pattern match a name at all, going by the letters it begins with?"""
    if match == "regex" and "|" in pattern:
        return True
    letters = re.match(r"[\w:-]*", pattern, re.ASCII)
    assert letters is not None, "nothing at all is letters, too"
    begin, rest = letters[0], pattern[letters.end() :]
    if match == "regex" and rest[:1] in ("?", "*", "{"):
        # The last letter may be missing.
        begin = begin[:-1]
    return any(prefix.startswith(begin) or begin.startswith(prefix) for prefix in ("topic:", "queue:"))


def _suggestion(lower: str, known: Iterable[str]) -> str:
    spelled = {name.lower(): name for name in known}
    near = get_close_matches(lower, spelled, n=1, cutoff=0.6)
    return f"; was {spelled[near[0]]} meant?" if near else ""


def _listed(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",")]
    for name in names:
        try:
            parse_destination(name)
        except AntiphonError as error:
            raise InvalidOption(f"subscribe: {error}") from None
    return tuple(dict.fromkeys(names))


def _wanted(given: Given) -> Chosen:
    """The columns, chosen or all."""
    is_json = given.word("bodyFormat", ("json", "binary"), "json") == "json"
    text = given.text("columns")
    has_acks = given.flag("includeAcks", False)
    if text is None:
        return Chosen(names_of(given.flag("includeBody", True), has_acks), is_json)
    if given.text("includeBody") is not None:
        raise InvalidOption("includeBody is not given with columns, which has body or has it not")
    known = names_of(True, has_acks)
    names = tuple(name.strip() for name in text.split(","))
    for place, name in enumerate(names):
        if name not in known:
            raise InvalidOption(
                f"columns: Antiphon's source has no column {name!r}{_suggestion(name.lower(), known)}"
                + ("" if get_close_matches(name, known) else f"; there are {', '.join(known)}")
            )
        if name in names[:place]:
            raise InvalidOption(f"columns names {name} twice")
    return Chosen(names, is_json)


def _starting(text: str | None) -> Starting | None:
    if text is None:
        return None
    match text.lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    return _offset("startingOffsets", text, "earliest, latest")


def _ending(text: str | None) -> Literal["latest"] | Offset:
    if text is None or text.lower() == "latest":
        return "latest"
    return _offset("endingOffsets", text, "latest")


def _offset(name: str, text: str, words: str) -> Offset:
    try:
        return parse_offset(json.loads(text))
    except (BadOffset, ValueError, RecursionError):
        example = '{"channels": {"a": 5000}}'
        raise InvalidOption(f"{name} is {words} or an offset such as {example}; it was {text!r}") from None


def _moment(given: Given, name: str) -> int | None:
    """A time in ms since 1970; None if it was not given."""
    text = given.text(name)
    return None if text is None else parse_moment(text, name)


def parse_moment(text: str, name: str) -> int:
    """A time in ms since 1970, given as such a number or as a date and time."""
    if text.isascii() and text.isdecimal() and len(text) < 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(
            f"{name} is a number of ms since 1970, or a time such as 2026-01-31T12:00:00Z; it was {text!r}"
        ) from None
    # A time without a zone is read as UTC: driver and executors may stand in different zones.
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def plain(options: Mapping[str, Any]) -> dict[str, str]:
    """The options as a dict of texts, whatever kind of mapping Spark has made of them."""
    return {str(name): str(text) for name, text in options.items()}
