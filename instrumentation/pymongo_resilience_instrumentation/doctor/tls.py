"""TLS as pymongo sets it up, for a socket of one's own."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .uri import Target


def tls_context(target: Target) -> ssl.SSLContext:
    """As pymongo makes it. Raises OSError where a file cannot be read."""
    options = target.options
    context = ssl.create_default_context(cafile=options.get("tlscafile"))
    key = options.get("tlscertificatekeyfile")
    if key is not None:
        context.load_cert_chain(key, password=options.get("tlscertificatekeyfilepassword", ""))
    if target.flag("tlsallowinvalidhostnames") or target.flag("tlsinsecure"):
        context.check_hostname = False
    if target.flag("tlsallowinvalidcertificates") or target.flag("tlsinsecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def expiry(wrapped: ssl.SSLSocket) -> datetime | None:
    text = (wrapped.getpeercert() or {}).get("notAfter")
    if not isinstance(text, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
