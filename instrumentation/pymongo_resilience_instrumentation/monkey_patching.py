"""Whether a library has replaced this process's sockets and threads by green ones.

What is retried, for how long, and in which order spans end is proved for threads and for asyncio.
With green threads below, none of that is proved. So the library
refuses to act, and says so, rather than to act almost rightly.
"""

from __future__ import annotations

import sys

_PATCHERS = (("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched"))
_MODULES = ("socket", "thread", "threading")


def refusal() -> str | None:
    """Why the library cannot act in this process; None where it can. Imports nothing."""
    for module, says in _PATCHERS:
        is_patched = getattr(sys.modules.get(module), says, None)
        if is_patched is not None and any(is_patched(name) for name in _MODULES):
            return (
                f"{module.partition('.')[0]} has monkey-patched this process, which is not "
                "supported: use threads or asyncio, or leave instrument() out"
            )
    return None
