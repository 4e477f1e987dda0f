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
    if key := options.get("tlscertificatekeyfile"):
        context.load_cert_chain(key, password=options.get("tlscertificatekeyfilepassword", ""))
    unchecked = target.flag("tlsallowinvalidcertificates") or target.flag("tlsinsecure")
    context.check_hostname = not (unchecked or target.flag("tlsallowinvalidhostnames"))
    if unchecked:
        context.verify_mode = ssl.CERT_NONE
    return context


def expiry(wrapped: ssl.SSLSocket) -> datetime | None:
    """None where the certificate was not checked."""
    text = (wrapped.getpeercert() or {}).get("notAfter")
    if not isinstance(text, str):
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
