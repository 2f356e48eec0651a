"""The bank sees every way in which a transaction can go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.sim.checkers.bank import Bank, Money
from antiphon.sim.world import Violation, World
from antiphon.wire.transaction_frames import TransactionFate

KEY = (7, 1)
QUEUE = 4
COIN, OTHER = Money(QUEUE, b"coin:30"), Money(QUEUE, b"other:70..")


def bank_with_a_wish() -> Bank:
    """A transaction takes a deposit of 100 out of a, and puts it into a and b."""
    bank = Bank(World(1))
    bank.on_deposit("a", 6, 1, [Money(QUEUE, b"paid:100")])
    bank.deposit("a", 6, 1, 10)
    bank.on_sent_within(KEY, "a", [COIN])
    bank.on_sent_within(KEY, "b", [OTHER])
    bank.on_commit_wished(KEY, ["a", "b"])
    return bank


def committed() -> Bank:
    """The same, carried out everywhere and told."""
    bank = bank_with_a_wish()
    bank.promised(KEY, "b")
    bank.decided(KEY, True, ["b"])
    bank.committed(KEY, "a", 20, 1, is_home=True)
    bank.committed(KEY, "b", 30, 1, is_home=False)
    bank.on_told(KEY, TransactionFate.COMMITTED)
    return bank


def withdraw(bank: Bank, amount: int) -> None:
    key = (8, 1)
    bank.on_commit_wished(key, ["a"], amount)
    bank.committed(key, "a", 40, 0, is_home=True)


def staged(bank: Bank, key: tuple[int, int], version: int) -> None:
    bank.on_staged("a", key[0], [Money(QUEUE, f"staged{key[0]}:5".encode())])
    bank.on_version_wished(key, "app", version, {"a": (key[0],)})
    bank.decided(key, True, [])
    bank.committed(key, "a", 50 + key[0], 1, is_home=True)


def test_a_transaction_that_happens_wholly_and_money_that_is_taken_out_are_fine() -> None:
    bank = committed()
    bank.on_delivered("b", 30, OTHER.body)
    bank.forgotten(KEY)
    withdraw(bank, 100)
    bank.at_quiet({})

    assert bank.figures["across"] == 1


def test_a_transaction_that_is_rolled_back_leaves_nothing() -> None:
    bank = bank_with_a_wish()
    bank.promised(KEY, "b")
    bank.decided(KEY, False, [])
    bank.let_go(KEY, "b")
    bank.on_told(KEY, TransactionFate.ROLLED_BACK)
    withdraw(bank, 100)
    bank.at_quiet({})


def test_a_version_that_was_committed_is_told_as_such() -> None:
    bank = Bank(World(1))
    staged(bank, (1, 1), version=3)
    bank.on_version_wished((2, 1), "app", 3, {"a": (2,)})
    bank.on_told((2, 1), TransactionFate.COMMITTED_BEFORE)


def _decides_alone(bank: Bank) -> None:
    bank.promised(KEY, "b")
    bank.committed(KEY, "b", 30, 1, is_home=False)


def _lets_go_of_what_is_committed(bank: Bank) -> None:
    bank.promised(KEY, "b")
    bank.decided(KEY, True, ["b"])
    bank.let_go(KEY, "b")


def _commits_what_was_let_go(bank: Bank) -> None:
    bank.promised(KEY, "b")
    bank.let_go(KEY, "b")
    bank.decided(KEY, True, ["b"])


def _commits_in_one_channel_only(bank: Bank) -> None:
    bank.promised(KEY, "b")
    bank.decided(KEY, True, ["b"])
    bank.committed(KEY, "a", 20, 1, is_home=True)
    bank.at_quiet({})


def _forgets_too_early(bank: Bank) -> None:
    bank.promised(KEY, "b")
    bank.decided(KEY, True, ["b"])
    bank.committed(KEY, "a", 20, 1, is_home=True)
    bank.forgotten(KEY)


def _commits_half_of_a_part(bank: Bank) -> None:
    bank.on_sent_within(KEY, "a", [Money(QUEUE, b"more:1")])
    bank.committed(KEY, "a", 20, 1, is_home=True)


def _says_rolled_back_and_commits(bank: Bank) -> None:
    bank.on_told(KEY, TransactionFate.ROLLED_BACK)
    bank.committed(KEY, "a", 20, 1, is_home=True)


def _gains_in_a_range_that_was_shown(bank: Bank) -> None:
    bank.on_shown("a", QUEUE, 20)
    bank.committed(KEY, "a", 20, 1, is_home=True)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (_decides_alone, "which its home has not decided"),
        (lambda bank: bank.decided(KEY, True, ["b"]), "never promised"),
        (_lets_go_of_what_is_committed, "lets go of its part"),
        (_commits_what_was_let_go, "has let go of its part"),
        (_commits_in_one_channel_only, "and is committed in ['a']"),
        (_forgets_too_early, "['b'] have not committed"),
        (_commits_half_of_a_part, "brings 1 messages to a, 2 were sent"),
        (_says_rolled_back_and_commits, "was told ROLLED_BACK, and was committed"),
        (_gains_in_a_range_that_was_shown, "in a range that was shown"),
        (lambda bank: bank.on_told(KEY, TransactionFate.COMMITTED), "nobody has decided"),
        (lambda bank: bank.on_delivered("b", 30, OTHER.body), "dirty read"),
        (lambda bank: bank.on_delivered("a", 10, b"paid:99"), "is shown as"),
        (lambda bank: bank.deposit("a", 6, 2, 11), "that nobody made"),
    ],
)
def test_what_must_not_happen_to_a_wish_is_seen(does: Callable[[Bank], None], words: str) -> None:
    with pytest.raises(Violation) as broken:
        does(bank_with_a_wish())
    assert words in str(broken.value)


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (lambda bank: bank.committed(KEY, "b", 31, 1, is_home=False), "twice"),
        (lambda bank: bank.deposit("a", 6, 1, 11), "is stored twice"),
        (lambda bank: bank.on_told(KEY, TransactionFate.ROLLED_BACK), "and then ROLLED_BACK"),
        (lambda bank: bank.at_quiet({}), "100 was paid in, and 0 taken out"),
    ],
)
def test_what_must_not_happen_behind_a_commit_is_seen(does: Callable[[Bank], None], words: str) -> None:
    with pytest.raises(Violation) as broken:
        does(committed())
    assert words in str(broken.value)


def test_a_version_is_committed_once() -> None:
    bank = Bank(World(1))
    staged(bank, (1, 1), version=3)
    with pytest.raises(Violation, match="version 3 of app is committed once more"):
        staged(bank, (2, 1), version=3)


def test_a_version_that_nobody_committed_was_not_committed_before() -> None:
    bank = Bank(World(1))
    bank.on_version_wished((2, 1), "app", 3, {"a": (2,)})
    with pytest.raises(Violation, match="is said to be committed, and is not"):
        bank.on_told((2, 1), TransactionFate.COMMITTED_BEFORE)
