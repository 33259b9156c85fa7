"""Debian's nginx and haproxy in front of a gateway, configured as their manuals show; real processes on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log info; worker_processes 1; {user}
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream gateway {{ server {host}:{gateway_port}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 10m;
    location / {{
      proxy_pass http://gateway;
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_buffering off;
    }}
  }}
}}
"""
"""The WebSocket snippet of nginx's own manual, and connections to the gateway that several callers share."""

HAPROXY = """
global
  maxconn 256
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend callers
  bind 127.0.0.1:{port}
  default_backend gateway
backend gateway
  server one {host}:{gateway_port}
"""
PROXIES = ("nginx", "haproxy")


def installed(name: str) -> str | None:
    """Its program, also where an ordinary user's PATH leaves the administrator's folders out."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


@contextmanager
def in_front_of(name: str, gateway_url: str, folder: Path) -> Iterator[int]:
    """Run the proxy; yields the port on which it listens."""
    program = installed(name)
    assert program is not None
    host, gateway_port = gateway_url.removeprefix("http://").split(":")
    port = _free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    text = (NGINX if name == "nginx" else HAPROXY).format(
        folder=folder, host=host, gateway_port=gateway_port, port=port, user=user
    )
    config = folder / f"{name}.conf"
    config.write_text(text)
    arguments = ["-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config)]
    if name == "haproxy":
        arguments = ["-db", "-f", str(config)]
    log = (folder / "output").open("wb")
    process = subprocess.Popen([program, *arguments], stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process, folder / "output")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the proxy did not start: {output.read_text()}") from None
            time.sleep(0.05)
