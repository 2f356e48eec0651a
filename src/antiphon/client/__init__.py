"""The client: `core` is the whole protocol without sockets or a clock, `aio` its asyncio face. The blocking
face, `antiphon.blocking`, is generated from `aio`."""
