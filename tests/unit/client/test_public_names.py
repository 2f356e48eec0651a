"""Applications find on the public classes what is for them, and nothing else."""

from __future__ import annotations

import dis
import inspect
from types import ModuleType
from typing import Any

import pytest

import antiphon
from antiphon import blocking

PUBLIC = {
    "Connection": (
        "admin close closed is_started on_error on_lost on_resumed ranges session staging start state stop"
    ),
    "Session": (
        "ack browse close closed commit consumer delete_temporary producer recover reply request rollback "
        "run_transaction temporary_queue temporary_topic transaction unstored unsubscribe"
    ),
    "Producer": "close destination is_blocked send send_batches send_many try_send unblocked",
    "Consumer": "close closed destination receive receive_many",
    "Message": (
        "ack body body_bytes channel correlation_id dedup_id deliver_at delivery_count destination expires "
        "key message_id persistent priority properties redelivered reject reply_to sequence timestamp type"
    ),
    "Receipt": "channel duplicate message_id sequence",
    "Receipts": "channel count duplicates index",
    "Row": (
        "body correlation_id count dedup_id delay index key persistent priority properties reply_to ttl type"
    ),
    "Admin": (
        "change consumers create create_many dead delete destinations digests holds move purge retry status"
    ),
    "CreationResult": "code count destination index outcome text",
    "Staging": "abort application close closed commit stage writer",
    "StagedPart": "application channels id messages pieces",
    "Ranges": (
        "at_time bound channels cluster close closed destinations heads hold holds read release versions"
    ),
    "Tls": "ca certificate check_hostname key server_name",
    "PublishUncertain": "add_note args code confirmed message_id message_ids resend with_traceback",
}


def names(cls: type[Any]) -> set[str]:
    """What a class offers, and what its instances are given when they are made."""
    members = {name for name in dir(cls) if not name.startswith("_")}
    made = dis.get_instructions(cls.__init__) if inspect.isfunction(cls.__init__) else ()
    given = {instruction.argval for instruction in made if instruction.opname == "STORE_ATTR"}
    return members | {name for name in given if not name.startswith("_")}


CLASSES = [(face, name) for face in (antiphon, blocking) for name in PUBLIC if hasattr(face, name)]


@pytest.mark.parametrize(("face", "name"), CLASSES)
def test_a_public_class_offers_what_applications_may_call(face: ModuleType, name: str) -> None:
    assert names(getattr(face, name)) == set(PUBLIC[name].split())


def test_every_public_class_is_listed() -> None:
    classes = {
        name
        for name in antiphon.__all__
        if inspect.isclass(cls := getattr(antiphon, name)) and not issubclass(cls, antiphon.AntiphonError)
    }
    assert classes - set(PUBLIC) == {"Int8", "Int16", "Int32", "Float32"}, "and these are numbers"
