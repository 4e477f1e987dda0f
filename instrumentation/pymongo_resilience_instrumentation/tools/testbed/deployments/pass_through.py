"""Proxies that pass on the hellos of members: of a deployment that exists, or of a real set."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode

from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from pymongo_resilience_instrumentation.tools.testbed.proxy.backend import Backend
from pymongo_resilience_instrumentation.tools.testbed.server import TestbedError

from .replica_set import ReplicaSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from pymongo_resilience_instrumentation.tools.testbed.fault import Fault
    from pymongo_resilience_instrumentation.tools.testbed.proxy.member import Member
    from pymongo_resilience_instrumentation.tools.testbed.wire import Document, Message

    from .deployment import Target

_ANSWER_WITHIN: Final = 2.0
"""Seconds; a member that takes longer is not taken for the primary."""


class PassThrough(ReplicaSet):
    """The base of deployments that decide themselves who is primary, and what they refuse."""

    passes_hellos: ClassVar[bool] = True

    @abstractmethod
    async def _backends(self) -> Sequence[Backend]:
        """One for each member."""

    def refusal(self, member: Member, request: Message) -> Document | None:
        """Leave that to the server."""
        return None

    def describe(self, member: Member, hello: Document) -> None:
        """Leave it as it is."""

    async def strike(self, fault: Fault, on: Target = "all") -> Future[None]:
        """The same, once it is known who is primary."""
        await self.find_primary()
        return await super().strike(fault, on)

    async def find_primary(self) -> Member | None:
        """Ask all members."""
        hellos = await asyncio.gather(*(_hello(each.backend) for each in self.members))
        primaries = (
            each
            for each, hello in zip(self.members, hellos, strict=True)
            if hello.get("ismaster") and "setName" in hello
        )
        self._primary = next(primaries, None)
        return self._primary

    def _elect(self) -> None:
        """Leave that to the members."""


class InFrontOf(PassThrough):
    """Proxies on this machine before a deployment that exists: faults for a staging environment.

    Only what carries a fault is touched, and hellos, which name the proxies in the place of the
    members. Clients log in to the deployment itself, through the proxies, with credentials of their
    own. To the deployment the proxies speak TLS where the URI says so, with its certificates; on
    this machine they do not.

    :param uri: the members, TLS and its files, ``mongodb+srv`` as well; what else it holds, the
        credentials above all, is not used.
    """

    elects: ClassVar[bool] = False

    def __init__(self, uri: str, *, port: int | None = None) -> None:
        try:
            parsed = parse_uri(uri, warn=False)
        except (PyMongoError, ValueError) as error:
            # Its text may hold the credentials.
            raise ValueError(f"in-front-of is no URI: {type(error).__name__}") from None
        self._seeds: list[tuple[str, int]] = [
            (host, number or 27017) for host, number in parsed["nodelist"]
        ]
        self._options: Any = parsed["options"]
        self._set_name: str | None = None
        super().__init__(self._seeds[0], members=1, port=port)

    @property
    def server_description(self) -> str:
        """The number of members; it may ask for a login to say its version."""
        return f"in front of {len(self.members)} members"

    @property
    def _parameters(self) -> str:
        parameters = {} if self._set_name is None else {"replicaSet": self._set_name}
        if "authSource" in self._options:
            parameters["authSource"] = self._options["authSource"]
        return f"?{urlencode(parameters)}" if parameters else ""

    async def _backends(self) -> Sequence[Backend]:
        tls = _context(self._options) if self._options.get("tls") else None
        hellos = await asyncio.gather(*(_hello(Backend(seed, tls)) for seed in self._seeds))
        found = next((hello for hello in hellos if "setName" in hello), None)
        if not any(hellos):
            raise TestbedError("no member of the deployment answers")
        if found is None:
            return [Backend(seed, tls) for seed in self._seeds]
        self._set_name = found["setName"]
        names = [*found.get("hosts", ()), *found.get("passives", ())]
        return [Backend(_address(name), tls) for name in names]

    def describe(self, member: Member, hello: Document) -> None:
        """Name the proxies in the place of the members; one that joined later has none."""
        proxies = {
            "{}:{}".format(*each.backend.address): each.host_and_port for each in self.members
        }
        hello.pop("arbiters", None)
        for field in ("hosts", "passives"):
            if field in hello:
                hello[field] = [proxies[name] for name in hello[field] if name in proxies]
        if "me" in hello:
            hello["me"] = member.host_and_port
        if "primary" in hello:
            hello["primary"] = proxies.get(hello["primary"], hello["primary"])


def _address(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    return host.strip("[]"), int(port)


async def _hello(backend: Backend) -> Document:
    """Nothing where the member does not answer."""
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_ANSWER_WITHIN), await backend.connect() as upstream:
            return await upstream.ask({"isMaster": 1, "$db": "admin"})
    return {}


def _context(options: Any) -> ssl.SSLContext:
    """TLS as the options of a URI say."""
    context = ssl.create_default_context(cafile=options.get("tlsCAFile"))
    if certificate := options.get("tlsCertificateKeyFile"):
        context.load_cert_chain(certificate, password=options.get("tlsCertificateKeyFilePassword"))
    skips = options.get("tlsAllowInvalidCertificates")
    if skips or options.get("tlsAllowInvalidHostnames"):
        context.check_hostname = False
    if skips:
        context.verify_mode = ssl.CERT_NONE
    return context
