"""The short cut for a publish of one body, against the way that all commands go."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch
from antiphon.client_manager import admission
from antiphon.client_manager.admission import Admitted, check_command
from antiphon.errors import ProtocolError
from antiphon.wire.commands import publish_buffers

BODIES = st.lists(st.binary(max_size=24), min_size=1, max_size=3)


def publish(bodies: list[bytes], number: int, confirmed_through: int) -> bytes:
    batch = Batch.of_bodies(bodies, producer=7, first_number=number, timestamp_ms=5)
    return b"".join(publish_buffers(7, 1, number, confirmed_through, 3, 1, batch.buffers(), len(bodies)))


def admitted(data: bytes) -> Admitted | str:
    try:
        return check_command(data)
    except ProtocolError as error:
        return error.text


@given(
    BODIES, st.integers(1, 9), st.integers(0, 9), st.integers(0), st.sampled_from([0, 0, 1, 2, 0x80, 0xFF])
)
def test_a_command_is_judged_alike_with_and_without_the_short_cut(
    bodies: list[bytes], number: int, confirmed_through: int, place: int, change: int
) -> None:
    """Publishes of one and of several bodies, whole and with a byte that lies: the same words, too."""
    data = bytearray(publish(bodies, number, confirmed_through))
    data[place % len(data)] ^= change
    clever = admitted(bytes(data))
    with patch.object(admission, "read_lone_publish", return_value=None):
        assert clever == admitted(bytes(data))
