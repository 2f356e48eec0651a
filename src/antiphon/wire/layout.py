"""Layout: a dataclass whose annotations are its wire format.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class DestinationOpen:
        request: U32
        name: Text
        create: Bool

`Layout(DestinationOpen)` writes and reads the fields in the order in which they
stand. To the type checker a `U32` is an int and a `Text` a str; the format is
written down once, where the reader of the code looks for it. Reordering the
fields of such a class changes the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from antiphon.wire.primitives import Buffer, Reader, Writer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """How values of one kind are written and read."""

    write: Callable[[Writer, T], None]
    read: Callable[[Reader], T]


def list_of(element: Field[T], element_bytes_min: int) -> Field[tuple[T, ...]]:
    """A u32 count, then the elements."""
    write_element, read_element = element.write, element.read

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        writer.count(len(values))
        for value in values:
            write_element(writer, value)

    def read(reader: Reader) -> tuple[T, ...]:
        return tuple([read_element(reader) for _ in range(reader.count(element_bytes_min))])

    return Field(write, read)


U8 = Annotated[int, Field(Writer.u8, Reader.u8)]
U16 = Annotated[int, Field(Writer.u16, Reader.u16)]
U32 = Annotated[int, Field(Writer.u32, Reader.u32)]
U64 = Annotated[int, Field(Writer.u64, Reader.u64)]
U128 = Annotated[int, Field(Writer.u128, Reader.u128)]
I64 = Annotated[int, Field(Writer.i64, Reader.i64)]
Bool = Annotated[bool, Field(Writer.bool_, Reader.bool_)]
Text = Annotated[str, Field(Writer.text, Reader.text)]
Texts = Annotated[tuple[str, ...], list_of(Field(Writer.text, Reader.text), element_bytes_min=2)]
U32s = Annotated[tuple[int, ...], list_of(Field(Writer.u32, Reader.u32), element_bytes_min=4)]
Document = Annotated[str, Field(Writer.document, Reader.document)]
Rest = Annotated[Buffer, Field(Writer.raw, Reader.rest)]


class Layout(Generic[T]):
    """Write and read the dataclass `cls`, field by field."""

    __slots__ = ("_fields", "cls")

    def __init__(self, cls: type[T]) -> None:
        hints = get_type_hints(cls, include_extras=True)
        self.cls = cls
        self._fields: list[tuple[str, Field[Any]]] = []
        for field in fields(cls):  # type: ignore[arg-type]
            notes = getattr(hints[field.name], "__metadata__", ())
            assert notes and isinstance(notes[0], Field), f"{cls.__name__}.{field.name} has no wire format"
            self._fields.append((field.name, notes[0]))

    def write(self, writer: Writer, value: T) -> None:
        for name, field in self._fields:
            field.write(writer, getattr(value, name))

    def read(self, reader: Reader) -> T:
        return self.cls(**{name: field.read(reader) for name, field in self._fields})

    def encode(self, value: T) -> bytes:
        writer = Writer()
        self.write(writer, value)
        return writer.join()

    def decode(self, data: Buffer) -> T:
        reader = Reader(data)
        value = self.read(reader)
        reader.finish()
        return value
