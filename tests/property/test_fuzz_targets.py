"""The fuzz targets hold for their own seeds, and for seeds with a few bytes changed.

The search itself is `make fuzz`; here it is seen to that the targets keep up with the code.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_its_seeds(name: str) -> None:
    seeds = TARGETS[name].seeds()
    assert seeds
    for data in [*seeds, b"", b"\0" * 100, b"\xff" * 100]:
        TARGETS[name].check(data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
def test_a_target_holds_for_spoiled_seeds(name: str, data: st.DataObject) -> None:
    spoiled = bytearray(data.draw(st.sampled_from(TARGETS[name].seeds())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled)))
        spoiled[at : at + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\xff" * 4, bytes(4)])
        )
    TARGETS[name].check(bytes(spoiled))
