"""Messages over a socket: four bytes of length, then the bytes.

Requests are pickles (the training process is trusted), replies are JSON (a worker that handled hostile text is not).
"""

import contextlib
import json
import pickle
import socket
from typing import Any

_HEADER = 4


def encode_request(message: object) -> bytes:
    return _framed(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def encode_reply(message: object) -> bytes:
    return _framed(json.dumps(message).encode("ascii"))


def decode_reply(body: bytes) -> Any:
    return json.loads(body)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(_HEADER, "big") + body


def receive_request(connection: socket.socket) -> Any:
    """The next request on a blocking socket, None when the other end is closed."""
    header = _receive_exactly(connection, _HEADER)
    if header is None:
        return None
    body = _receive_exactly(connection, int.from_bytes(header, "big"))
    return None if body is None else pickle.loads(body)


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        with contextlib.suppress(InterruptedError):
            part = connection.recv(min(size - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
    return bytes(parts)


class Buffers:
    """The two directions of a non-blocking socket: what is still to be sent, and what came but is not yet a message."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._outgoing = bytearray()
        self._incoming = bytearray()

    @property
    def must_send(self) -> bool:
        return bool(self._outgoing)

    def send(self, data: bytes) -> None:
        self._outgoing += data
        self.flush()

    def flush(self) -> None:
        """Sends what the socket takes; a broken connection shows when reading."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outgoing:
                sent = self._connection.send(self._outgoing)
                del self._outgoing[:sent]

    def receive(self) -> tuple[list[bytes], bool]:
        """The bodies of the messages that arrived, and whether the other end is still open."""
        is_open = True
        try:
            while True:
                part = self._connection.recv(1 << 20)
                if not part:
                    is_open = False
                    break
                self._incoming += part
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionResetError:
            is_open = False
        bodies = []
        while len(self._incoming) >= _HEADER:
            end = _HEADER + int.from_bytes(self._incoming[:_HEADER], "big")
            if len(self._incoming) < end:
                break
            bodies.append(bytes(self._incoming[_HEADER:end]))
            del self._incoming[:end]
        return bodies, is_open
