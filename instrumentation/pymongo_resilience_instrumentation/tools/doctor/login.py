"""Checks with a pymongo client, created as the application would: login, permissions, primary,
limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo import MongoClient, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

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
"""Symptoms that other checks report."""
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
    """True if the checks were not finished in time."""

    def run(self) -> bool:
        """Run all checks, then return True. Never raises a PyMongoError."""
        limits = ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS")
        options: dict[str, Any] = dict.fromkeys(limits, max(1, int(self.seconds * 1000)))
        try:
            # The doctor's own limits replace those of the URI, so that it ends in time.
            client = Client(self.uri, appname=APPLICATION, timeoutMS=None, **options)
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            text = f"pymongo cannot create a client with this URI ({type(error).__name__})"
            self._add("login", Level.WRONG, text)
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
            self._add("login", Level.OK, "the login succeeded")
            return True
        # Use find, because connectionStatus and ping do not require a login.
        database = client.get_database(self.target.database or "test", read_preference=_ANY)
        try:
            database.pymongo_resilience_doctor.find_one()
        except OperationFailure as error:
            if error.code != UNAUTHORIZED:
                raise
            self.findings.append(diagnosed("login", Symptom.LOGIN_REQUIRED))
            return False
        self._add("login", Level.NOTE, "the URI has no user, and the server requires no login")
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
        """Yield the server version. The newest servers report it only after a login."""
        if not self.has_version:
            reply = client.admin.command("buildInfo", read_preference=_ANY)
            yield Finding("version", Level.OK, f"server version {reply['version']}")

    def _rights(self, client: Client) -> Iterator[Finding]:
        if not self.target.has_user:
            return
        reply = client.admin.command("connectionStatus", showPrivileges=True, read_preference=_ANY)
        wanted = self.target.database
        where = f"the database {wanted}" if wanted else "all databases"
        may = set(_granted(reply.get("authInfo", {}), wanted))
        if not may:
            more = f": it can neither read nor write {where if wanted else 'any database'}"
            yield diagnosed("rights", Symptom.MISSING_RIGHTS, more)
        elif "some" in may:
            text = f"the user has permissions for some collections of {where}, but not for all"
            yield Finding("rights", Level.NOTE, text)
        elif "write" in may:
            text = f"the user can {' and '.join(sorted(may))} {where}"
            yield Finding("rights", Level.OK, text)
        else:
            text = f"the user can read {where} but not write"
            yield Finding(
                "rights",
                Level.WARNING,
                text,
                "grant the role readWrite if the application writes",
            )

    def _limits(self, client: Client) -> Iterator[Finding]:
        reply = client.admin.command("serverStatus", read_preference=_ANY).get("connections", {})
        current, available = (int(reply.get(key, 0)) for key in ("current", "available"))
        pool = self.target.milliseconds("maxpoolsize")
        each = DEFAULT_POOL if pool is None else pool
        text = f"{current} connections in use"
        # If the server reports 0 although it has accepted our connection, it does not count them.
        if not available or each * self.processes <= available:
            counted = f", {available} available" if available else ""
            yield Finding("limits", Level.OK, text + counted)
            return
        text += f", {available} available, but {self.processes} processes with maxPoolSize={each} "
        text += f"may open {each * self.processes}"
        advice = "set a smaller maxPoolSize, or raise net.maxIncomingConnections on the server"
        yield Finding("limits", Level.WARNING, text, advice)

    def _states(self, client: Client) -> Iterator[Finding]:
        if not client.topology_description.topology_type_name.startswith("ReplicaSet"):
            return
        reply = client.admin.command("replSetGetStatus", read_preference=_ANY)
        for each in reply.get("members", []):
            state, name = str(each.get("stateStr")), str(each.get("name"))
            if state not in _HEALTHY_STATES:
                text = f"the replica set reports this member in state {state}"
                yield Finding("members", Level.WARNING, text, "check the log of that member", name)

    def _primary(self, client: Client) -> Iterator[Finding]:
        client.admin.command("ping")
        self.has_primary = True
        # Makes this a generator, like the other checks.
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
            found = diagnosis(client, ReadPreference.PRIMARY)
            if found is not None and found.symptom not in _OTHERWISE:
                servers = f": {', '.join(found.servers)}"
                self.findings.append(diagnosed("login", found.symptom, servers))
                return
        # The servers were reachable a moment ago, so any other timeout means that they are slow.
        self.is_slow = isinstance(error, ServerSelectionTimeoutError) or error.timeout
        if not self.is_slow:
            self._add("login", Level.WRONG, f"failed: {safe_message(error)}")

    def _add(self, check: str, level: Level, text: str) -> None:
        self.findings.append(Finding(check, level, text))


def _granted(information: dict[str, Any], database: str | None) -> Iterator[str]:
    """Yield ``read`` and ``write``, or ``some`` if the user has permissions only for single
    collections.

    Decides by privileges, or by roles if the server reports no privileges.
    """
    privileges = information.get("authenticatedUserPrivileges") or []
    granted = set(_of_privileges(privileges, database))
    whole = granted & {"read", "write"}
    yield from whole or granted
    if privileges:
        return
    for each in information.get("authenticatedUserRoles") or []:
        role = each.get("role")
        if role not in _READS:
            # A custom role. If in doubt, do not report an error.
            yield from ("read", "write")
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
