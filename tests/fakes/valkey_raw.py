"""One command to a Valkey over a plain socket: shows what the server says, without a client in between."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit


def ask(url: str, command: str) -> bytes:
    """The raw reply to `command`, after logging in with the password of the URL if it has one."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=5) as connection:
        if parts.password:
            connection.sendall(f"AUTH {parts.password}\r\n".encode())
            reply = connection.recv(4096)
            if not reply.startswith(b"+OK"):
                return reply
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(4096)
