"""Payload: a dataclass that is the payload of a command, encoded and decoded by its annotations."""

from __future__ import annotations

from typing import Any, Self

from antiphon.wire.layout import Layout
from antiphon.wire.primitives import Buffer

_layouts: dict[type[Any], Layout[Any]] = {}


def _layout_of(cls: type[Any]) -> Layout[Any]:
    layout = _layouts.get(cls)
    if layout is None:
        layout = _layouts[cls] = Layout(cls)
    return layout


class AnnotatedPayload:
    """`encode` and `decode` by the annotations of the class, whose order of fields is its format."""

    __slots__ = ()

    def encode(self) -> bytes:
        return _layout_of(type(self)).encode(self)

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        payload: Self = _layout_of(cls).decode(data)
        return payload
