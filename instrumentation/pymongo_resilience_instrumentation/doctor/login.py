"""A client of pymongo, as the application makes it: login, rights, a primary, and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pymongo import MongoClient, ReadPreference
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError

from pymongo_resilience_instrumentation import driver
from pymongo_resilience_instrumentation.failures.safe_texts import safe_message
from pymongo_resilience_instrumentation.selection.diagnosis import ROWS, Symptom
from pymongo_resilience_instrumentation.selection.explanations import diagnosis

from .findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .uri import Target

APPLICATION: Final = "pymongo-resilience doctor"
DEFAULT_POOL: Final = 100
_CODES: Final = {
    13: Symptom.MISSING_RIGHTS,
    18: Symptom.PASSWORD,
    334: Symptom.MECHANISM,
    8000: Symptom.PASSWORD,  # Atlas
}
_EVERYTHING: Final = {"root", "__system", "dbOwner", "readWrite", "readWriteAnyDatabase"}
_READS: Final = {"read", "readAnyDatabase"}
_OF_ALL: Final = {"root", "__system", "readAnyDatabase", "readWriteAnyDatabase"}
_OTHERWISE: Final = {
    Symptom.ELECTION, Symptom.NO_MAJORITY, Symptom.NO_MATCH, Symptom.SILENT, Symptom.BLACK_HOLE,
}  # fmt: skip
"""Not this check's to say."""
_HEALTHY_STATES: Final = {"PRIMARY", "SECONDARY", "ARBITER"}


class Login:
    """The checks with one client. For one thread; ``findings`` may be read by others."""

    def __init__(self, uri: str, target: Target, seconds: float, processes: int) -> None:
        self._uri = uri
        self._target = target
        self._seconds = seconds
        self._processes = processes
        self.findings: list[Finding] = []
        self.has_primary = False
        self.is_slow = False
        """It was not done in time."""

    def run(self) -> bool:
        """True at its end; never raises a PyMongoError."""
        milliseconds = max(1, int(self._seconds * 1000))
        options: dict[str, Any] = dict.fromkeys(
            ("serverSelectionTimeoutMS", "connectTimeoutMS", "socketTimeoutMS"), milliseconds
        )
        try:
            client = MongoClient[dict[str, Any]](
                self._uri, appname=APPLICATION, timeoutMS=None, **options
            )
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            self._add("login", Level.WRONG, f"no client can be made ({type(error).__name__})")
            return True
        with client:
            try:
                if self._logged_in(client):
                    for check in (self._rights, self._limits, self._states, self._primary):
                        self._tried(check, client)
            except PyMongoError as error:
                self._failed(error, client)
        return True

    def _logged_in(self, client: MongoClient[dict[str, Any]]) -> bool:
        nearest = client.admin.with_options(read_preference=ReadPreference.NEAREST)
        if self._target.has_user:
            nearest.command("ping")
            self._add("login", Level.OK, "the user is logged in")
            return True
        # connectionStatus and ping need no login.
        database = client.get_database(
            self._target.database or "test", read_preference=ReadPreference.NEAREST
        )
        try:
            database.pymongo_resilience_doctor.find_one()
        except OperationFailure as error:
            if error.code != next(iter(_CODES)):
                raise
            self._symptom("login", Symptom.LOGIN_REQUIRED)
            return False
        self._add("login", Level.NOTE, "no user in the URI, and the server demands none")
        return True

    def _tried(
        self,
        check: Callable[[MongoClient[dict[str, Any]]], None],
        client: MongoClient[dict[str, Any]],
    ) -> None:
        try:
            check(client)
        except OperationFailure as error:
            name = check.__name__.strip("_")
            self._add(name, Level.NOTE, f"not checked: {safe_message(error)}")

    def _rights(self, client: MongoClient[dict[str, Any]]) -> None:
        if not self._target.has_user:
            return
        reply = client.admin.command(
            "connectionStatus", showPrivileges=True, read_preference=ReadPreference.NEAREST
        )
        information = reply.get("authInfo", {})
        wanted = self._target.database
        where = f"the database {wanted}" if wanted else "any database"
        may = set(_granted(information, wanted))
        if not may:
            self._symptom("rights", Symptom.MISSING_RIGHTS, f": none to read or write {where}")
        elif "write" not in may:
            text = f"the user may read {where}, and not write"
            self._add("rights", Level.WARNING, text, "the role readWrite, if it is to write")
        else:
            self._add("rights", Level.OK, f"the user may {' and '.join(sorted(may))} {where}")

    def _limits(self, client: MongoClient[dict[str, Any]]) -> None:
        reply = client.admin.command("serverStatus", read_preference=ReadPreference.NEAREST)
        connections = reply.get("connections", {})
        current, available = (int(connections.get(key, 0)) for key in ("current", "available"))
        pool = self._target.milliseconds("maxpoolsize")
        each = DEFAULT_POOL if pool is None else pool
        wanted = each * self._processes
        text = f"{current} connections in use, {available} available"
        # A server that reports none, and has accepted ours, does not count them.
        if available and wanted > available:
            self._add(
                "limits",
                Level.WARNING,
                f"{text}; {self._processes} processes with maxPoolSize={each} may open {wanted}",
                "a smaller maxPoolSize, or net.maxIncomingConnections of the server",
            )
        else:
            self._add("limits", Level.OK, text if available else f"{current} connections in use")

    def _states(self, client: MongoClient[dict[str, Any]]) -> None:
        if not client.topology_description.topology_type_name.startswith("ReplicaSet"):
            return
        reply = client.admin.command("replSetGetStatus", read_preference=ReadPreference.NEAREST)
        for each in reply.get("members", []):
            state, name = str(each.get("stateStr")), str(each.get("name"))
            if state not in _HEALTHY_STATES:
                text = f"the set has it in state {state}"
                self._add("members", Level.WARNING, text, "the log of that member", name)

    def _primary(self, client: MongoClient[dict[str, Any]]) -> None:
        client.admin.command("ping")
        self.has_primary = True

    def _failed(self, error: PyMongoError, client: MongoClient[dict[str, Any]]) -> None:
        code = getattr(error, "code", None)
        if isinstance(error, OperationFailure) and code in _CODES:
            self._symptom("login", _CODES[code])
            return
        if isinstance(error, ServerSelectionTimeoutError):
            found = diagnosis(driver.checks.topology_of(client), ReadPreference.PRIMARY)
            if found is not None and found.symptom not in _OTHERWISE:
                self._symptom("login", found.symptom, f": {', '.join(found.servers)}")
                return
        if isinstance(error, ServerSelectionTimeoutError) or error.timeout:
            # Whatever else it may be, the servers were reached a moment ago.
            self.is_slow = True
            return
        self._add("login", Level.WRONG, f"failed: {safe_message(error)}")

    def _symptom(self, check: str, symptom: Symptom, more: str = "") -> None:
        row = ROWS[symptom]
        self.findings.append(
            Finding(check, Level.WRONG, f"{row.says}{more}", f"check {row.check}", symptom=symptom)
        )

    def _add(
        self, check: str, level: Level, text: str, advice: str = "", server: str | None = None
    ) -> None:
        self.findings.append(Finding(check, level, text, advice, server))


def _granted(information: dict[str, Any], database: str | None) -> Iterator[str]:
    """``read`` and ``write``, by the privileges or, where the server names none, the roles."""
    privileges = information.get("authenticatedUserPrivileges") or []
    for each in privileges:
        resource, actions = each.get("resource", {}), set(each.get("actions", ()))
        covers = resource.get("anyResource") or (
            "db" in resource and (database is None or resource["db"] in {"", database})
        )
        if covers and resource.get("db") not in {"local", "config"}:
            yield from (["read"] if actions & {"find", "anyAction"} else [])
            yield from (["write"] if actions & {"insert", "update", "anyAction"} else [])
    if privileges:
        return
    for each in information.get("authenticatedUserRoles") or []:
        role, of = each.get("role"), each.get("db")
        if role not in _EVERYTHING | _READS:
            yield from ("read", "write")  # a role of their own: in doubt it is no fault
        if database is not None and of != database and role not in _OF_ALL:
            continue
        yield from (["read"] if role in _EVERYTHING | _READS else [])
        yield from (["write"] if role in _EVERYTHING else [])
