"""What pymongo's TLS libraries raise."""

from __future__ import annotations

import ssl

try:
    from pymongo.ssl_support import PYSSLError, SSLError
except ImportError:
    TLS_ERRORS: tuple[type[Exception], ...] = (ssl.SSLError,)
else:
    # Of PyOpenSSL, where it is installed, and of the standard library.
    TLS_ERRORS = (PYSSLError, SSLError)
