"""Lines of standard input as bodies: each a text in UTF-8, as soon as it arrives."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator

from antiphon.batch import BODY_BYTES_MAX
from antiphon.errors import InvalidMessage

BLOCK_BYTES = 1 << 18


class BadLine(InvalidMessage):
    """A line cannot be sent. The lines before it can."""

    code = "local.bad_line"


async def read_lines(descriptor: int, advance: Callable[[int], None]) -> AsyncIterator[str]:
    """The lines of standard input without their ends; `advance` gets the size of every block.

    Raises BadLine at a line that is too long or is no text, after all the lines before it.
    """
    before, rest = 0, b""
    while block := await _read(descriptor):
        whole, end, rest = (rest + block).rpartition(b"\n")
        if end:
            for line in _texts(whole, before):
                yield line
            before += whole.count(b"\n") + 1
        if len(rest) > BODY_BYTES_MAX:
            raise _too_long(before + 1)
        advance(len(block))
    if rest:
        for line in _texts(rest, before):
            yield line


def bytes_to_read(descriptor: int) -> int | None:
    """The size of the input; None if it is not known."""
    status = os.fstat(descriptor)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _texts(whole: bytes, before: int) -> Iterator[str]:
    """The lines of a block as texts. No line of a block that is small enough can be too long."""
    try:
        text = whole.decode() if len(whole) <= BODY_BYTES_MAX else None
    except UnicodeDecodeError:
        text = None
    if text is not None:
        yield from text.replace("\r\n", "\n").removesuffix("\r").split("\n")
        return
    for number, line in enumerate(whole.split(b"\n"), before + 1):
        line = line.removesuffix(b"\r")
        if len(line) > BODY_BYTES_MAX:
            raise _too_long(number)
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise BadLine(
                f"line {number} is not UTF-8 text; bytes of any kind are sent with --file"
            ) from None


def _too_long(number: int) -> BadLine:
    return BadLine(f"line {number} is larger than the {BODY_BYTES_MAX:,} bytes that a message may have")


async def _read(descriptor: int) -> bytes:
    """The next block, as far as it is there; empty at the end. The event loop goes on while nothing comes."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        pass  # a file, which need not be waited for
    else:
        try:
            await readable.wait()
        finally:
            loop.remove_reader(descriptor)
    return os.read(descriptor, BLOCK_BYTES)
