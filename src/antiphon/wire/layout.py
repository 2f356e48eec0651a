"""Layout: a dataclass, or a tuple with names, whose annotations are its wire format.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class DestinationOpen:
        request: U32
        name: Text
        create: Bool

`Layout(DestinationOpen)` writes and reads the fields in their order. To the type checker a `U32` is an int
and a `Text` a str. Reordering the fields of such a class changes the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import groupby
from operator import attrgetter, itemgetter
from struct import Struct
from struct import error as StructError
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Buffer, Reader, Writer, pack

T = TypeVar("T")
E = TypeVar("E", bound=IntEnum)


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """How values of one kind are written and read.

    A plain number has a `code`, its letter in a struct: a layout reads and writes neighbours at once.
    """

    write: Callable[[Writer, T], None]
    read: Callable[[Reader], T]
    code: str = ""


def list_of(element: Field[T] | Layout[T], element_bytes_min: int) -> Field[tuple[T, ...]]:
    """A u32 count, then the elements."""
    write_element, read_element = element.write, element.read

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        writer.count(len(values))
        for value in values:
            write_element(writer, value)

    def read(reader: Reader) -> tuple[T, ...]:
        return tuple([read_element(reader) for _ in range(reader.count(element_bytes_min))])

    return Field(write, read)


def enum_of(kind: type[E]) -> Field[E]:
    """A u8 that must be one of the values of `kind`."""
    known = {int(value): value for value in kind}

    def read(reader: Reader) -> E:
        number = reader.u8()
        value = known.get(number)
        if value is None:
            raise ProtocolError(f"{number} is no {kind.__name__}")
        return value

    return Field(Writer.u8, read)


def fixed(size: int) -> Field[bytes]:
    def write(writer: Writer, value: bytes) -> None:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes where {size} belong")
        writer.raw(value)

    return Field(write, lambda reader: bytes(reader.raw(size)))


def _write_numbers(writer: Writer, numbers: tuple[int, ...]) -> None:
    writer.count(len(numbers))
    writer.raw(pack(Struct(f"<{len(numbers)}Q"), *numbers))


def _read_numbers(reader: Reader) -> tuple[int, ...]:
    count = reader.count(8)
    return Struct(f"<{count}Q").unpack(reader.raw(8 * count))


def _write_ranges(writer: Writer, ranges: Ranges) -> None:
    writer.bytes_(ranges.encode())


def _read_ranges(reader: Reader) -> Ranges:
    return Ranges.decode(reader.bytes_())


U8 = Annotated[int, Field(Writer.u8, Reader.u8, "B")]
U16 = Annotated[int, Field(Writer.u16, Reader.u16, "H")]
U32 = Annotated[int, Field(Writer.u32, Reader.u32, "I")]
U64 = Annotated[int, Field(Writer.u64, Reader.u64, "Q")]
U128 = Annotated[int, Field(Writer.u128, Reader.u128)]
I64 = Annotated[int, Field(Writer.i64, Reader.i64, "q")]
Bool = Annotated[bool, Field(Writer.bool_, Reader.bool_)]
Text = Annotated[str, Field(Writer.text, Reader.text)]
Texts = Annotated[tuple[str, ...], list_of(Field(Writer.text, Reader.text), element_bytes_min=2)]
U32s = Annotated[tuple[int, ...], list_of(Field(Writer.u32, Reader.u32), element_bytes_min=4)]
U64s = Annotated[tuple[int, ...], Field(_write_numbers, _read_numbers)]
Document = Annotated[str, Field(Writer.document, Reader.document)]
Bytes = Annotated[bytes, Field(Writer.bytes_, lambda reader: bytes(reader.bytes_()))]
View = Annotated[Buffer, Field(Writer.bytes_, Reader.bytes_)]
Bytes16 = Annotated[bytes, fixed(16)]
SomeRanges = Annotated[Ranges, Field(_write_ranges, _read_ranges)]
Rest = Annotated[Buffer, Field(Writer.raw, Reader.rest)]


class Layout(Generic[T]):
    """Writes and reads `cls`, field by field; neighbouring numbers at once."""

    __slots__ = ("_make", "_reads", "_writes", "cls")

    def __init__(self, cls: type[T]) -> None:
        self.cls = cls
        self._writes: list[tuple[Callable[[Any], Any], Callable[[Writer, Any], None]]] = []
        self._reads: list[tuple[Struct | None, Callable[[Reader], Any]]] = []
        names, self._make = _names_and_maker(cls)
        hints = get_type_hints(cls, include_extras=True)
        formats = [(at, _format_of(cls, name, hints[name])) for at, name in enumerate(names)]
        # The fields of a tuple are taken by their places, which costs less than by their names.
        is_tuple = issubclass(cls, tuple)
        for is_number, neighbours in groupby(formats, lambda one: bool(one[1].code)):
            several = list(neighbours)
            if is_number:
                numbers = Struct("<" + "".join([field.code for _, field in several]))
                start, stop = several[0][0], several[-1][0] + 1
                if is_tuple:
                    self._writes.append((itemgetter(slice(start, stop)), _numbers_writer(numbers)))
                elif len(several) > 1:
                    self._writes.append((attrgetter(*names[start:stop]), _numbers_writer(numbers)))
                else:
                    self._writes.append((attrgetter(names[start]), several[0][1].write))
                self._reads.append((numbers, Reader.rest))
            else:
                for at, field in several:
                    take = itemgetter(at) if is_tuple else attrgetter(names[at])
                    self._writes.append((take, field.write))
                    self._reads.append((None, field.read))

    def write(self, writer: Writer, value: T) -> None:
        for get, write in self._writes:
            write(writer, get(value))

    def read(self, reader: Reader) -> T:
        values: list[Any] = []
        for numbers, read in self._reads:
            if numbers is not None:
                values += reader.numbers(numbers)
            else:
                values.append(read(reader))
        return self.cls(*values) if self._make is None else self._make(values)

    def encode(self, value: T) -> bytes:
        writer = Writer()
        self.write(writer, value)
        return writer.join()

    def decode(self, data: Buffer) -> T:
        reader = Reader(data)
        value = self.read(reader)
        reader.finish()
        return value


def _names_and_maker(cls: type[T]) -> tuple[list[str], Callable[[list[Any]], T] | None]:
    """The names of the fields, and the function that makes a `cls` of their values; None for `cls` itself."""
    if issubclass(cls, tuple):
        return list(cls._fields), cls._make  # type: ignore[attr-defined]
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    if any(field.kw_only for field in fields(cls)):  # type: ignore[arg-type]
        return names, lambda values: cls(**dict(zip(names, values, strict=True)))
    return names, None


def _format_of(cls: type[Any], name: str, hint: Any) -> Field[Any]:
    notes = getattr(hint, "__metadata__", ())
    assert notes and isinstance(notes[0], Field), f"{cls.__name__}.{name} has no wire format"
    return notes[0]


def _numbers_writer(numbers: Struct) -> Callable[[Writer, Any], None]:
    pack_numbers = numbers.pack

    def write(writer: Writer, values: tuple[int, ...]) -> None:
        try:
            writer.parts.append(pack_numbers(*values))
        except StructError:
            pack(numbers, *values)  # says what does not fit

    return write
