"""Messages over a socket: four bytes of length, then the bytes."""

import asyncio
import socket

_HEADER = 4


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(_HEADER, "big") + body


def receive(connection: socket.socket) -> bytes | None:
    """The next message on a blocking socket; None when the other end is closed."""
    header = _exactly(connection, _HEADER)
    return None if header is None else _exactly(connection, int.from_bytes(header, "big"))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


async def read(stream: asyncio.StreamReader) -> bytes | None:
    """`receive` for the supervisor, which never blocks."""
    try:
        return await stream.readexactly(int.from_bytes(await stream.readexactly(_HEADER), "big"))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
