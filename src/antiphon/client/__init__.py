"""What an application imports: `core`, the whole protocol without sockets or a clock, and `aio`, its asyncio
face. The blocking face, `antiphon.blocking`, is generated from that."""
