"""A client of pymongo, as the application makes it: login, rights, a primary, and limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.causes import is_rejection
from pymongo_resilience_instrumentation.failures.error_texts import safe_message
from pymongo_resilience_instrumentation.failures.symptoms import Symptom
from pymongo_resilience_instrumentation.selection.selection_explained import diagnosis

from . import Finding, Level, diagnosed
from .uri import Target

APPLICATION: Final = "pymongo-resilience doctor"
DEFAULT_POOL: Final = 100
UNAUTHORIZED: Final = 13
_CODES: Final = {
    UNAUTHORIZED: Symptom.MISSING_RIGHTS,
    18: Symptom.PASSWORD,
    334: Symptom.MECHANISM,
    8000: Symptom.PASSWORD,  # Atlas
}
_WRITES: Final = {"root", "__system", "dbOwner", "readWrite", "readWriteAnyDatabase"}
_READS: Final = _WRITES | {"read", "readAnyDatabase"}
_OF_ALL: Final = {"root", "__system", "readAnyDatabase", "readWriteAnyDatabase"}
_OTHERWISE: Final = {
    Symptom.ELECTION, Symptom.NO_MAJORITY, Symptom.NO_MATCH, Symptom.NO_ANSWER,
    Symptom.NO_TLS_ANSWER, Symptom.BLACK_HOLE,
}  # fmt: skip
"""Not this check's to say."""
_HEALTHY_STATES: Final = {"PRIMARY", "SECONDARY", "ARBITER"}
_ANY: Final = ReadPreference.NEAREST

Client = MongoClient[dict[str, Any]]


@dataclass(repr=False)
class Login:
    """The checks with one client. For one thread; ``findings`` may be read by others."""

    uri: str
    target: Target
    seconds: float
    processes: int
    has_version: bool
    findings: list[Finding] = field(default_factory=list)
    has_primary: bool = False
    is_slow: bool = False
    """It was not done in time."""

    def run(self) -> bool:
        """True at its end; never raises a PyMongoError."""
        limits = ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS")
        options: dict[str, Any] = dict.fromkeys(limits, max(1, int(self.seconds * 1000)))
        try:
            client = Client(self.uri, appname=APPLICATION, timeoutMS=None, **options)
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            self._add("login", Level.WRONG, f"no client can be made ({type(error).__name__})")
            return True
        with client:
            try:
                if self._logged_in(client):
                    self._checked(client)
            except PyMongoError as error:
                self._failed(error, client)
        return True

    def _logged_in(self, client: Client) -> bool:
        if self.target.has_user:
            client.admin.with_options(read_preference=_ANY).command("ping")
            self._add("login", Level.OK, "the user is logged in")
            return True
        # connectionStatus and ping need no login.
        database = client.get_database(self.target.database or "test", read_preference=_ANY)
        try:
            database.pymongo_resilience_doctor.find_one()
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            self.findings.append(diagnosed("login", Symptom.LOGIN_REQUIRED))
            return False
        self._add("login", Level.NOTE, "no user in the URI, and the server requires none")
        return True

    def _checked(self, client: Client) -> None:
        for check in (self._version, self._rights, self._limits, self._states, self._primary):
            try:
                self.findings += check(client)
            except OperationFailure as error:
                name = check.__name__.strip("_")
                if is_rejection(error):
                    more = ": it rejected a command"
                    self.findings.append(diagnosed(name, Symptom.OVERLOADED, more))
                    return
                self._add(name, Level.NOTE, f"not checked: {safe_message(error)}")

    def _version(self, client: Client) -> Iterator[Finding]:
        """Newest servers tell it to nobody before a login."""
        if not self.has_version:
            reply = client.admin.command("buildInfo", read_preference=_ANY)
            yield Finding("version", Level.OK, f"server version {reply['version']}")

    def _rights(self, client: Client) -> Iterator[Finding]:
        if not self.target.has_user:
            return
        reply = client.admin.command("connectionStatus", showPrivileges=True, read_preference=_ANY)
        wanted = self.target.database
        where = f"the database {wanted}" if wanted else "any database"
        may = set(_granted(reply.get("authInfo", {}), wanted))
        if not may:
            yield diagnosed("rights", Symptom.MISSING_RIGHTS, f": none to read or write {where}")
        elif "some" in may:
            text = f"the user has rights on some collections of {where}, and not on all"
            yield Finding("rights", Level.NOTE, text)
        elif "write" in may:
            text = f"the user may {' and '.join(sorted(may))} {where}"
            yield Finding("rights", Level.OK, text)
        else:
            text = f"the user may read {where}, and not write"
            yield Finding(
                "rights", Level.WARNING, text, "grant the role readWrite, if it is to write"
            )

    def _limits(self, client: Client) -> Iterator[Finding]:
        reply = client.admin.command("serverStatus", read_preference=_ANY).get("connections", {})
        current, available = (int(reply.get(key, 0)) for key in ("current", "available"))
        pool = self.target.milliseconds("maxpoolsize")
        each = DEFAULT_POOL if pool is None else pool
        text = f"{current} connections in use"
        # A server that reports none, and has accepted ours, does not count them.
        if not available or each * self.processes <= available:
            counted = f", {available} available" if available else ""
            yield Finding("limits", Level.OK, text + counted)
            return
        text += f", {available} available; {self.processes} processes with maxPoolSize={each} may "
        advice = "set a smaller maxPoolSize, or net.maxIncomingConnections of the server"
        yield Finding("limits", Level.WARNING, f"{text}open {each * self.processes}", advice)

    def _states(self, client: Client) -> Iterator[Finding]:
        if not client.topology_description.topology_type_name.startswith("ReplicaSet"):
            return
        reply = client.admin.command("replSetGetStatus", read_preference=_ANY)
        for each in reply.get("members", []):
            state, name = str(each.get("stateStr")), str(each.get("name"))
            if state not in _HEALTHY_STATES:
                text = f"the replica set lists it in state {state}"
                yield Finding("members", Level.WARNING, text, "read the log of that member", name)

    def _primary(self, client: Client) -> Iterator[Finding]:
        client.admin.command("ping")
        self.has_primary = True
        yield from ()

    def _failed(self, error: PyMongoError, client: Client) -> None:
        code = getattr(error, "code", None)
        if isinstance(error, OperationFailure) and code in _CODES:
            self.findings.append(diagnosed("login", _CODES[code]))
            return
        if is_rejection(error):
            self.findings.append(diagnosed("login", Symptom.OVERLOADED, ": it rejected the login"))
            return
        if isinstance(error, ServerSelectionTimeoutError):
            found = diagnosis(driver.clients.topology_of(client), ReadPreference.PRIMARY)
            if found is not None and found.symptom not in _OTHERWISE:
                servers = f": {', '.join(found.servers)}"
                self.findings.append(diagnosed("login", found.symptom, servers))
                return
        # Whatever else it may be, the servers were reached a moment ago.
        self.is_slow = isinstance(error, ServerSelectionTimeoutError) or error.timeout
        if not self.is_slow:
            self._add("login", Level.WRONG, f"failed: {safe_message(error)}")

    def _add(self, check: str, level: Level, text: str) -> None:
        self.findings.append(Finding(check, level, text))


def _granted(information: dict[str, Any], database: str | None) -> Iterator[str]:
    """``read`` and ``write``, by the privileges or, where the server names none, the roles;
    ``some`` in place of both where they are for single collections alone."""
    privileges = information.get("authenticatedUserPrivileges") or []
    granted = set(_of_privileges(privileges, database))
    whole = granted & {"read", "write"}
    yield from whole or granted
    if privileges:
        return
    for each in information.get("authenticatedUserRoles") or []:
        role = each.get("role")
        if role not in _READS:
            yield from ("read", "write")  # a role of their own: in doubt it is no fault
        elif database in {None, each.get("db")} or role in _OF_ALL:
            yield from (["read", "write"] if role in _WRITES else ["read"])


def _of_privileges(privileges: list[dict[str, Any]], database: str | None) -> Iterator[str]:
    for each in privileges:
        resource, actions = each.get("resource", {}), set(each.get("actions", ()))
        covers = resource.get("anyResource") or (
            "db" in resource and (database is None or resource["db"] in {"", database})
        )
        if covers and resource.get("db") not in {"local", "config"}:
            single = bool(resource.get("collection")) and not resource.get("anyResource")
            if actions & {"find", "anyAction"}:
                yield "some" if single else "read"
            if actions & {"insert", "update", "anyAction"}:
                yield "some" if single else "write"
