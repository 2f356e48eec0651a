"""Impossible values on the command line are mistakes of usage, told in a sentence."""

from __future__ import annotations

import pytest

from antiphon.cli.main import build_parser, main
from antiphon.cli.options import tls_option
from antiphon.tls import Tls


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("send queue:a x --priority 10", "10 is no priority: those are 0 to 9"),
        ("send queue:a x --priority high", "'high' is no whole number"),
        ("send queue:a x --ttl 0", "a message lives for more than 0 seconds"),
        ("send queue:a x --ttl abc", "'abc' is no time in seconds, such as 5 or 0.5"),
        ("send queue:a x --delay -1", "'-1' is no time in seconds"),
        ("send queue:a --size x", "'x' is no whole number"),
        ("send queue:a x --count 0", "0 is not a positive number"),
        ("receive queue:a --count x", "'x' is no whole number"),
        ("admin create queue:a --dedup-window 8d", "'8d' is longer than 7d"),
        ("admin create queue:a --redelivery-delay 61m", "'61m' is longer than 1h"),
        ("admin create queue:a --redelivery-limit x", "'x' is no whole number"),
        ("admin create queue:a --dead-to foo", "invalid choice: 'foo'"),
        ("admin create topic:a --retention-bytes -1", "-1 is less than nothing"),
        ("admin wait --timeout soon", "'soon' is no time in seconds"),
        ("up --port x", "'x' is no whole number"),
        ("up --port 70000", "70000 is no port: those are 1 to 65535"),
        ("up --witnesses x", "'x' is no whole number"),
        ("init there --bus-port 0", "0 is no port"),
    ],
)
def test_an_impossible_value_is_a_mistake_of_usage_and_told_in_a_sentence(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert told in last and "_option" not in last and "not_negative" not in last, last


def test_the_largest_possible_values_are_read() -> None:
    create = "admin create queue:a --dedup-window 7d --redelivery-delay 60m --dead-to _DMQ+expired"
    read = build_parser("admin").parse_args(create.split())
    assert (read.dedup_window, read.redelivery_delay, read.dead_to) == (604_800, 3_600, "_DMQ+expired")
    assert build_parser("up").parse_args(["up", "--port", "0"]).port == 0


PLAIN, SECURE = "antiphon://h", "antiphons://h"


@pytest.mark.parametrize(
    ("words", "environment", "wanted"),
    [
        (f"--url {PLAIN}", {}, None),
        (f"--url {SECURE}", {}, None),
        (f"--url {SECURE}", {"ANTIPHON_TLS_CA": "e.pem"}, Tls(ca="e.pem")),
        # The environment of a shell is for all urls, an option is for this one.
        (f"--url {PLAIN}", {"ANTIPHON_TLS_CA": "e.pem"}, None),
        (f"--url {PLAIN} --tls-ca o.pem", {}, Tls(ca="o.pem")),
        (
            f"--url {SECURE} --tls-ca o.pem",
            {"ANTIPHON_TLS_CA": "e.pem", "ANTIPHON_TLS_CERT": "e.crt", "ANTIPHON_TLS_KEY": "e.key"},
            Tls(ca="o.pem", certificate="e.crt", key="e.key"),
        ),
    ],
)
@pytest.mark.parametrize("command", ["send queue:a x", "receive queue:a", "admin status", "bench"])
def test_the_files_of_tls_come_from_options_and_the_environment(
    command: str,
    words: str,
    environment: dict[str, str],
    wanted: Tls | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("ANTIPHON_TLS_CA", "ANTIPHON_TLS_CERT", "ANTIPHON_TLS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for variable, text in environment.items():
        monkeypatch.setenv(variable, text)
    assert tls_option(build_parser().parse_args([*command.split(), *words.split()])) == wanted
