"""Options of the source: what is taken, and the sentence for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import InvalidOption
from antiphon.pipeline.columns import ALL
from antiphon.pipeline.connections import read_password
from antiphon.pipeline.offsets import Offset
from antiphon.pipeline.options import ConnectionOptions, Given, SourceOptions
from antiphon.tls import Tls

LEAST = {"servers": "127.0.0.1:7420", "subscribe": "topic:orders"}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **options})


def refusal(options: dict[str, str]) -> str:
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse(options)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_the_least_that_must_be_said() -> None:
    options = parse()
    assert options.connection.url == "antiphon://127.0.0.1:7420"
    assert options.names == ("topic:orders",)
    assert (options.fails_on_loss, options.wanted, options.mode) == (True, ALL, "read")


def test_names_may_be_spelled_in_any_case() -> None:
    options = SourceOptions.parse(
        {"SERVERS": "a:1", "Subscribe": "queue:a, queue:b,queue:a", "failondataloss": "FALSE"}
    )
    assert options.names == ("queue:a", "queue:b")
    assert not options.fails_on_loss


def test_several_servers_with_or_without_the_scheme() -> None:
    assert parse(servers="antiphon://a:1, b:2").connection.url == "antiphon://a:1,b:2"


def test_tls_is_asked_for_by_the_scheme_or_by_an_option() -> None:
    assert parse(servers="h:1").connection.tls is None
    bare = parse(servers="antiphons://a:1, b:2").connection
    assert (bare.url, bare.tls) == ("antiphons://a:1,b:2", Tls())
    options = {"TLS.CA": "ca.pem", "tls.certificate": "me.pem", "tls.key": "me.key"}
    full = parse(servers="h:1", **options).connection
    assert full.url == "antiphons://h:1"
    assert full.tls == Tls(ca="ca.pem", certificate="me.pem", key="me.key")


def test_everything_that_can_be_said() -> None:
    options = SourceOptions.parse(
        {
            "servers": "h:1",
            "user": "u",
            "passwordFile": "/secret",
            "subscribePattern": "topic:o.*",
            "match": "glob",
            "startingOffsets": '{"v": 2, "channels": {"b": 7, "a": -2}}',
            "endingOffsets": '{"v": 2, "channels": {"a": 9, "b": -1}}',
            "maxOffsetsPerTrigger": "1000",
            "maxBytesPerTrigger": "2000000",
            "minPartitions": "4",
            "failOnDataLoss": "false",
            "includeBody": "false",
            "subscriptionName": "nightly",
            "subscriptionLimit": "3600",
            "mode": "read",
            "path": "x",
            "checkpointLocation": "y",
        }
    )
    assert options.pattern == "topic:o.*" and options.match == "glob"
    assert options.starting == Offset({"a": -2, "b": 7})
    assert options.ending == Offset({"a": 9, "b": -1})
    assert (options.rows_max, options.bytes_max, options.partitions_min) == (1000, 2_000_000, 4)
    assert (options.subscription, options.subscription_limit_s) == ("nightly", 3600.0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
    ],
)
def test_times_are_milliseconds_or_iso(text: str, ms: int) -> None:
    assert parse(startingTimestamp=text).starting_ms == ms
    assert parse(endingTimestamp=text).ending_ms == ms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscrib": "topic:a"}, "no option subscrib; was subscribe meant?"),
        ({"startingOffset": "earliest"}, "no option startingOffset; was startingOffsets meant?"),
        ({"kafka.bootstrap.servers": "x"}, "no option kafka.bootstrap.servers"),
        ({"destination": "queue:a"}, "destination is an option of Antiphon's sink, not of its source"),
        ({"password": "hunter2"}, "passwordFile"),
        ({"tls.cert": "x"}, "no option tls.cert"),
        ({"tls.key": "x"}, "tls.key is given without tls.certificate"),
        ({"tls.ca": "x", "servers": "antiphon://h:1"}, "with antiphons://, or with nothing, before them"),
        ({"passwordFile": "/x"}, "without a user"),
        ({"servers": ""}, "servers is missing"),
        ({"servers": "u:hunter2@h:1"}, "servers is a list of host:port"),
        ({"subscribe": ""}, "one of subscribe and subscribePattern"),
        ({"subscribePattern": "x"}, "not both"),
        ({"subscribe": "orders"}, "neither queue: nor topic:"),
        ({"match": "glob"}, "subscribePattern"),
        ({"startingOffsets": "first"}, "startingOffsets is earliest, latest or an offset"),
        ({"startingOffsets": '{"a": 5}'}, '{"channels": {"a": 5000}}'),
        ({"startingOffsets": '{"v": 3, "channels": {}}'}, "startingOffsets is"),
        ({"startingOffsets": '{"v": 1, "channels": {"a": true}}'}, "startingOffsets is"),
        ({"endingOffsets": "earliest"}, "endingOffsets is latest or an offset"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is a number of ms since 1970"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "not both"),
        ({"timeout": "soon"}, "timeout is a number of seconds from 0 to 31,622,400; it was 'soon'"),
        ({"retryInterval": "0"}, "retryInterval is a number of seconds from 0.1 to 3,600; it was '0'"),
        (
            {"startingTimestamp": "2000", "endingTimestamp": "1000"},
            "startingTimestamp lies behind endingTimestamp",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is a whole number from 1 on; it was '0'"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger is a whole number"),
        ({"minPartitions": "-1"}, "minPartitions is a whole number"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss is true or false; it was 'yes'"),
        ({"includeBody": "1"}, "includeBody is true or false"),
        ({"columns": "key,boddy"}, "Antiphon's source has no column 'boddy'; was body meant?"),
        ({"columns": "value"}, "no column 'value'; there are destination, channel, sequence"),
        ({"columns": "acknowledged"}, "no column 'acknowledged'"),
        ({"columns": "key,body,key"}, "columns names key twice"),
        ({"columns": "body", "includeBody": "false"}, "includeBody is not given with columns"),
        ({"bodyFormat": "text"}, "bodyFormat is json or binary; it was 'text'"),
        ({"subscriptionLimit": "60"}, "subscriptionName"),
        ({"subscriptionName": "n", "subscriptionLimit": "nan"}, "number of seconds"),
        ({"includeAcks": "true"}, "includeAcks needs a subscriptionName"),
        ({"mode": "eat"}, "mode is read or consume; it was 'eat'"),
        ({"mode": "consume"}, "subscriptionName"),
        ({"mode": "consume", "subscriptionName": "n"}, "exactly one queue"),
        (
            {"mode": "consume", "subscriptionName": "n", "subscribe": "queue:a", "startingOffsets": "latest"},
            "startingOffsets is earliest",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(given: dict[str, str], said: str) -> None:
    text = refusal({**LEAST, **given})
    assert said in text
    assert "hunter2" not in text


def test_a_stream_has_no_end_and_a_batch_begins_before_the_latest() -> None:
    with pytest.raises(InvalidOption, match="a stream has no end"):
        parse(endingTimestamp="5").refuse_in_stream()
    with pytest.raises(InvalidOption, match="would find nothing"):
        parse(startingOffsets="latest").refuse_in_batch()
    with pytest.raises(InvalidOption, match="mode=consume is for readStream"):
        parse(mode="consume", subscriptionName="n", subscribe="queue:a").refuse_in_batch()
    parse(startingOffsets="latest", maxOffsetsPerTrigger="5").refuse_in_stream()
    parse(endingTimestamp="5").refuse_in_batch()


def test_a_batch_takes_a_streams_limits_and_says_that_they_do_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse(maxOffsetsPerTrigger="5").refuse_in_batch()
    assert "maxOffsetsPerTrigger and maxBytesPerTrigger do nothing for spark.read" in caplog.text


def test_a_password_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    options = parse(user="u", passwordFile=str(file))
    assert read_password(options.connection) == "hunter2"
    assert "hunter2" not in repr(options)
    assert read_password(ConnectionOptions("h:1")) is None


def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = parse(user="u", passwordFile=str(tmp_path / "gone"))
    with pytest.raises(InvalidOption, match="gone cannot be read: No such file"):
        read_password(options.connection)


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("orders.*", "regex"),
        ("orders", "regex"),
        ("orders.*", "glob"),
        ("topics:.*", "regex"),
        ("eu?", "glob"),
    ],
)
def test_a_pattern_that_lacks_its_topic_matched_nothing_in_silence(pattern: str, match: str) -> None:
    said = refusal({"servers": "h:1", "subscribePattern": pattern, "match": match})
    assert f"subscribePattern {pattern!r} can match nothing" in said
    assert f"begins with topic: or queue:, as in 'topic:{pattern}'" in said


@pytest.mark.parametrize(
    ("pattern", "match"),
    [
        ("topic:orders.*", "regex"),
        (".*orders", "regex"),
        ("(topic|queue):x", "regex"),
        ("orders|topic:orders", "regex"),
        ("t?.*", "regex"),
        ("x*topic:y", "regex"),
        ("[tq].*", "regex"),
        ("to.*", "regex"),
        ("*orders", "glob"),
        ("queue:?", "glob"),
        ("t*", "glob"),
    ],
)
def test_other_patterns_are_left_to_the_cluster(pattern: str, match: str) -> None:
    options = {"servers": "h:1", "subscribePattern": pattern, "match": match}
    assert SourceOptions.parse(options).pattern == pattern


def test_what_spark_adds_to_the_options_of_a_table_is_none_of_ours() -> None:
    given = {
        "provider": "antiphon", "owner": "root", "comment": "c", "a": "b",
        "servers": "h:1", "option.servers": "h:1", "subscribe": "topic:x", "option.subscribe": "topic:x",
    }  # fmt: skip
    assert SourceOptions.parse(given).names == ("topic:x",)
    said = refusal({**given, "subscrieb": "x", "option.subscrieb": "x"})
    assert "no option subscrieb" in said
    assert "SELECT … FROM table WITH (servers" in refusal({})


@pytest.mark.parametrize(
    "said",
    [
        {"servers": "127.0.0.1:7420"},
        {"servers": "a:1, b:2", "user": "ada", "passwordFile": "p", "timeout": "0.25", "retryInterval": "7"},
        {"servers": "antiphons://a:1,b:2"},
        {"servers": "a:1", "tls.ca": "ca", "tls.certificate": "c", "tls.key": "k"},
    ],
)
def test_connection_options_are_told_to_spark_as_they_were_given(said: dict[str, str]) -> None:
    options = ConnectionOptions.of(Given(said))
    assert ConnectionOptions.of(Given(options.texts)) == options
