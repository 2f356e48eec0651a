"""TlsTransport: TLS between the socket of a client and its `ClientConnection`.

TTR1  A connection is opened at the port with its socket, before the handshake: it counts among those that
      have not greeted, and has the same time for handshake and greeting together.
TTR2  A handshake costs bounded memory, and computes in turns: however many clients come at once, a round of
      the event loop has no more than a few steps of handshakes. A client that sends many tiny records has its
      turns among them.
TTR3  A client that fails the handshake hears why: by an alert of TLS, or, if the client speaks no TLS, by a
      Goodbye without it.
TTR4  The marks of the write buffer hold for the encrypted bytes, and a connection that is not read from is
      not decrypted either.

asyncio's own TLS tells of a connection after its handshake only, and cannot answer a client without TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from antiphon.runtime.connection import TLS_TURN, ClientConnection
from antiphon.tls import TlsContext, begins_handshake, client_failure

if TYPE_CHECKING:
    from antiphon.wire.primitives import Buffer

STEPS_PER_ROUND = 4
"""A step of a handshake is a fifth of a millisecond with elliptic curves, one or two with RSA."""

RECORDS_PER_STEP = 256
"""With records of 1 KiB this is all that one reading of the socket brings; it takes half a millisecond."""

NO_TLS = "this port speaks TLS and the client does not: its url must begin with antiphons://"

_HEAD_BYTES = 3
_READ_BYTES = 1 << 14  # of one record of TLS, at most


class TlsTurns:
    """The steps that wait, a few of which are done in each round of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def enter(self, step: Callable[[], None]) -> None:
        if not self._waiting:
            self._loop.call_soon(self._do_some)
        self._waiting.append(step)

    def _do_some(self) -> None:
        steps = [self._waiting.popleft() for _ in range(min(STEPS_PER_ROUND, len(self._waiting)))]
        if self._waiting:
            self._loop.call_soon(self._do_some)
        for step in steps:
            step()


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """The protocol of the socket's transport, and the transport of the connection."""

    def __init__(self, connection: ClientConnection, context: TlsContext, turns: TlsTurns) -> None:
        super().__init__()
        self._connection = connection
        self._context = context
        self._turns = turns
        self._socket: asyncio.Transport
        self._head = b""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # Made with the first bytes: a client that says nothing costs no memory of OpenSSL.
        self._tls: ssl.SSLObject | None = None
        self._is_secure = False
        self._is_plain = False
        # What has come is not decrypted to its end.
        self._has_more = False

    # -- what the socket's transport tells --------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream, but uvloop's streams do not say so.
        self._socket = cast(asyncio.Transport, transport)
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._connection.is_over:
            return
        if self._is_secure:
            self._incoming.write(data)
            self._read_some()
            return
        self._head = (self._head + data[:_HEAD_BYTES])[:_HEAD_BYTES]
        if not begins_handshake(self._head):
            self._is_plain = True
            self._connection.fail_tls(NO_TLS)
            return
        self._incoming.write(data)
        self._wait(self._shake)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.connection_lost(error)

    # -- TLS -------------------------------------------------------------------

    def _shake(self) -> None:
        """One step of the handshake."""
        if self._connection.is_over or self._socket.is_closing():
            return
        if self._tls is None:
            self._tls = self._context.current.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            self._tls.do_handshake()
            self._is_secure = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()
        # The greeting may have come with the end of the handshake.
        self._has_more = self._is_secure
        self._go_on()

    def _wait(self, step: Callable[[], None]) -> None:
        """Take a step when it is this client's turn, and read no more of the socket before."""
        self._connection.hold(TLS_TURN)
        self._turns.enter(step)

    def _go_on(self) -> None:
        """Have the connection read on, unless there are other reasons not to."""
        self._connection.release(TLS_TURN)

    def _read_some(self) -> None:
        """Decrypt so many records for the connection."""
        assert self._tls is not None, "nothing was encrypted yet"
        pieces: list[bytes] = []
        has_ended = False
        try:
            while len(pieces) < RECORDS_PER_STEP and not has_ended:
                if piece := self._tls.read(_READ_BYTES):
                    pieces.append(piece)
                else:
                    has_ended = True
            self._has_more = not has_ended
        except ssl.SSLWantReadError:
            self._has_more = False
        except ssl.SSLError as error:
            self._fail(error)
            return
        # The answer to a change of keys.
        self._flush()
        if pieces:
            self._connection.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if has_ended:
            self.close()
        elif self._has_more:
            self._wait(self._go_on)

    def _encrypt(self, data: Buffer) -> None:
        assert self._tls is not None, "nothing is encrypted before the handshake"
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        # The marks count what the socket has to send, so what was written counts like that, too.
        self._connection.written_bytes += self._outgoing.pending - len(data)
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        # OpenSSL has written an alert, and writes nothing after that.
        self._flush()
        self._is_secure = self._has_more = False
        self._connection.fail_tls(client_failure(error))

    def _say_end(self) -> None:
        if self._is_secure and self._tls is not None:
            self._is_secure = False
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                # The peer's own word of the end is not waited for.
                pass
            self._flush()

    # -- what the connection calls ----------------------------------------------

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        if self._is_secure:
            pieces = list(buffers)
            self._encrypt(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        elif self._is_plain:
            self._socket.writelines(buffers)
        # Else the handshake is not done, and the peer could not read it; or the end was said.

    def write_eof(self) -> None:
        self._say_end()
        self._socket.write_eof()

    def can_write_eof(self) -> bool:
        return self._socket.can_write_eof()

    def close(self) -> None:
        self._say_end()
        self._socket.close()

    def abort(self) -> None:
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket.is_closing()

    def pause_reading(self) -> None:
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._socket.resume_reading()
        if self._has_more and not self._connection.is_over:
            self._read_some()

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)
