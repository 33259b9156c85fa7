"""TLS in front of a real store: a certificate made on the spot, and a relay that ends TLS on its own event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
"""What a Postgres client sends before it speaks TLS."""


def make_certificate(folder: Path, name: str = "server", host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate for an address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} of a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    key_file.chmod(0o600)
    return certificate_file, key_file


class TlsFront:
    """Listens on `port` with TLS only; what comes out goes to `target_port`. Counts the handshakes that held."""

    def __init__(self, certificate: Path, key: Path, target_port: int, *, postgres: bool, ask_for: Path | None = None):
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=None if ask_for is None else ask_for)
        self._context.load_cert_chain(certificate, key)
        if ask_for is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._target, self._postgres = target_port, postgres
        self.handshakes = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls", daemon=True)

    def __enter__(self) -> TlsFront:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> None:
        context = None if self._postgres else self._context
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._postgres:
                if await reader.readexactly(8) != SSL_REQUEST:
                    return  # plain text is not taken
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(self._context)
            self.handshakes += 1
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))
            finally:
                inner_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()
