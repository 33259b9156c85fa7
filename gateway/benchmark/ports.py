"""Loopback ports of a measurement: find a free one, wait until a process answers on it."""

from __future__ import annotations

import socket
import subprocess
import time
from http.client import HTTPConnection, HTTPException


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, timeout_s: float, process: subprocess.Popen[bytes]) -> bool:
    """True once any HTTP answer other than "still starting" comes back; False on a time-out or a dead process."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        connection = HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status != 503:
                return True
        except (OSError, HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    return False
