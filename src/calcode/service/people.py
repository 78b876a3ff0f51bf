"""Access control: programs with tokens, people with accounts, and their roles (SERVICE.md 11)."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from sqlalchemy import Connection, Row, Table, select, true

from calcode.errors import ServiceError
from calcode.service.database import Database
from calcode.service.log import Event, Transaction, utc
from calcode.service.problems import Problem
from calcode.service.settings import Role
from calcode.service.tables import ACCOUNT, PASSWORD, SESSION, TOKEN, TOKEN_USE

#: Each endpoint names the roles that may use it.
ROLES = get_args(Role)
#: Roles that see answers at once; people who read cases blind must not have them (SERVICE.md 7).
SEES_ANSWERS = ("program", "auditor")
_SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,99}")
_SESSION_HOURS = 8
#: A hash of no account. It is verified if an account does not exist, so that this takes as long as for others.
_NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$p9xGGVSHg4Y8fV1i5cWzsQ$0UcF9O4E+X14EE7mgiJsnwOQ04WAS+ybMub4ROvZ0ss"
#: Number of callers that a limiter remembers; above it, callers who have all their requests left are forgotten.
_MOST_CALLERS = 10_000


@dataclass(frozen=True, slots=True)
class Principal:
    """The program or person that sent a request."""

    subject: str
    roles: frozenset[str]
    #: Prefix of the token; request limits count by it.
    prefix: str
    #: Lines that the sender is limited to; None: all.
    lines: frozenset[str] | None = None

    @property
    def program_alone(self) -> bool:
        """Whether decisions hide from the sender who was in a model's data, as for programs (SERVICE.md 11)."""
        return self.roles <= {"program", "admin"}

    def may(self, line: str) -> bool:
        """Whether the sender may use a line."""
        return self.lines is None or line in self.lines


def token_digest(token: str) -> str:
    """Return the digest of a token that is stored; for 256 random bits, SHA-256 without stretching is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """The valid tokens and sessions, in memory; read again every second and after every change.

    Parameters
    ----------
    database : Database
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._valid: dict[str, Principal] = {}
        #: Prefixes of the tokens used since `write_use` last ran, with the time of their last use.
        self.used: dict[str, float] = {}
        #: Expiry on the monotonic clock, fixed when a token is first seen, so that a clock jump ends no session.
        self._ends: dict[str, float] = {}
        self._turn = threading.Lock()

    def reload(self) -> None:
        """Read the tables again."""
        # One after the other: who read the tables before a change must not have the last word after it.
        with self._turn:
            self._reload()

    def _reload(self) -> None:
        with self._database.reading() as connection:
            tokens = connection.execute(select(TOKEN).where(TOKEN.c.revoked.is_(False))).all()
            sessions = connection.execute(select(SESSION)).all()
        found = [(row, row.prefix) for row in tokens] + [(row, row.sha256[:8]) for row in sessions]
        now, mono = datetime.now(UTC), time.monotonic()
        ends = {}
        for row, _ in found:
            left = (datetime.fromisoformat(row.expires) - now).total_seconds()
            ends[row.sha256] = self._ends.get(row.sha256, mono + left)
        self._ends = ends
        self._valid = {
            row.sha256: Principal(
                row.subject,
                frozenset(json.loads(row.roles)),
                prefix,
                None if row.lines is None else frozenset(json.loads(row.lines)),
            )
            for row, prefix in found
        }

    def principal(self, token: str) -> Principal | None:
        """Return the owner of a token; None if the token is unknown, revoked or expired."""
        digest = token_digest(token)
        if self._ends.get(digest, 0.0) < time.monotonic():
            return None
        principal = self._valid.get(digest)
        if principal is not None:
            self.used[principal.prefix] = time.time()
        return principal

    def write_use(self, transaction: Transaction) -> None:
        """Store when each token was last used; this makes no event."""
        used, self.used = self.used, {}
        for prefix, at in used.items():
            connection, values = transaction.connection, {"prefix": prefix, "last_used": utc(at)[:16] + "Z"}
            if (
                connection.execute(TOKEN_USE.update().where(TOKEN_USE.c.prefix == prefix).values(**values)).rowcount
                == 0
            ):
                connection.execute(TOKEN_USE.insert().values(**values))


def make_token(
    transaction: Transaction,
    *,
    subject: str,
    roles: Sequence[str],
    days: int,
    actor: str,
    lines: Sequence[str] | None = None,
) -> str:
    """Make a token for a program or a person; the token is shown once and only its SHA-256 is stored.

    Parameters
    ----------
    transaction : Transaction
    subject : str
    roles : sequence of str
    days : int
        Days until the token expires.
    actor : str
    lines : sequence of str, optional
        Lines that the token is limited to; default: all lines.
    """
    _require_some(roles)
    token = f"cal_{secrets.token_urlsafe(32)}"
    body = {
        "sha256": token_digest(token),
        "prefix": token[:12],
        "roles": _checked(transaction, subject, roles, tables=(ACCOUNT, TOKEN)),
        "expires": utc((datetime.now(UTC) + timedelta(days=days)).timestamp()),
        "lines": None if lines is None else sorted(set(lines)),
    }
    transaction.append([Event(kind="token_made", actor=actor, subject=subject, body=body)])
    return token


def revoke_token(transaction: Transaction, *, prefix: str, actor: str) -> None:
    """Revoke a token; every process refuses it from the next second on."""
    row = transaction.connection.execute(select(TOKEN).where(TOKEN.c.prefix == prefix)).first()
    if row is None:
        raise Problem(404, "No token has this prefix.")
    transaction.append([Event(kind="token_revoked", actor=actor, subject=row.subject, body={"prefix": prefix})])


def set_roles(
    transaction: Transaction,
    *,
    subject: str,
    roles: Sequence[str],
    source: str,
    actor: str,
    lines: Sequence[str] | None = None,
    person: str | None = None,
) -> None:
    """Make an account or change its roles and lines; nothing is recorded if nothing changes.

    Parameters
    ----------
    transaction : Transaction
    subject : str
    roles : sequence of str
    source : {"local", "oidc"}
        How the account signs in.
    actor : str
    lines : sequence of str, optional
        Lines that the account is limited to; default: all lines.
    person : str, optional
        Pseudonym of the identity provider's person; default: unchanged.

    Raises
    ------
    ServiceError
        Also if the account exists and signs in in another way: two people with one name must not share an account.
    """
    _require_some(roles)
    found = account_row(transaction.connection, subject)
    if found is not None and found.source != source:
        how = "with the identity provider" if found.source == "oidc" else "with a password"
        raise ServiceError(
            f"subject: there is an account {subject} already, which signs in {how}; another person needs another name"
        )
    wanted, limited = (
        _checked(transaction, subject, roles, tables=(TOKEN,)),
        None if lines is None else sorted(set(lines)),
    )
    if found is not None:
        before = json.loads(found.roles), json.loads(found.lines or "null"), found.person
        person = person or found.person
        if before == (wanted, limited, person):
            return
    # Sessions carry the roles of their sign-in and end here: nobody must keep a lost role for the rest of the day.
    transaction.connection.execute(SESSION.delete().where(SESSION.c.subject == subject))
    body = {"roles": wanted, "lines": limited, "source": source, "new": found is None, "person": person}
    transaction.append([Event(kind="role_changed", actor=actor, subject=subject, body=body)])


def release_account(transaction: Transaction, *, subject: str, actor: str) -> None:
    """Free an account for the next person with its name, because the identity provider's identifiers have changed."""
    found = account_row(transaction.connection, subject)
    if found is None or found.source != "oidc":
        raise ServiceError(f"subject: no account {subject} signs in with the identity provider")
    transaction.connection.execute(SESSION.delete().where(SESSION.c.subject == subject))
    body = {"roles": json.loads(found.roles), "lines": json.loads(found.lines or "null"), "source": found.source}
    event = Event(kind="role_changed", actor=actor, subject=subject, body={**body, "new": False, "person": None})
    transaction.append([event])


def end_account(transaction: Transaction, *, subject: str, actor: str) -> None:
    """End an account: it stays in the log, and loses its roles, sessions, password and tokens."""
    connection = transaction.connection
    found = account_row(connection, subject)
    if found is None:
        raise Problem(404, "No account has this name.")
    connection.execute(SESSION.delete().where(SESSION.c.subject == subject))
    connection.execute(PASSWORD.delete().where(PASSWORD.c.subject == subject))
    if is_ended(found):
        return
    limited = json.loads(found.lines or "null")
    body = {"roles": [], "lines": limited, "source": found.source, "new": False, "person": found.person}
    transaction.append([Event(kind="role_changed", actor=actor, subject=subject, body=body)])
    tokens = select(TOKEN.c.prefix).where(TOKEN.c.subject == subject, TOKEN.c.revoked.is_(False))
    for prefix in connection.execute(tokens).scalars().all():
        revoke_token(transaction, prefix=prefix, actor=actor)


def account_row(connection: Any, subject: str) -> Row[Any] | None:
    """Return the row of an account; None if there is no such account."""
    row: Row[Any] | None = connection.execute(select(ACCOUNT).where(ACCOUNT.c.subject == subject)).first()
    return row


def persons_account(connection: Any, person: str) -> Row[Any] | None:
    """Return the account of a person of the identity provider, also under a changed name; None if there is none."""
    row: Row[Any] | None = connection.execute(select(ACCOUNT).where(ACCOUNT.c.person == person)).first()
    return row


def is_ended(account: Row[Any]) -> bool:
    """Whether an account was ended: it has no role left."""
    return not json.loads(account.roles)


def require_lines(lines: Sequence[str] | None, *, known: Collection[str]) -> None:
    """Refuse limits to lines that do not exist.

    Parameters
    ----------
    lines : sequence of str or None
        Lines to which a token or an account is to be limited.
    known : collection of str
        Lines of the site file.
    """
    unknown = sorted(set(lines or ()) - set(known))
    if unknown:
        raise ServiceError(f"lines: there is no line {', '.join(unknown)}; there are {', '.join(known)}")


def set_password(transaction: Transaction, *, subject: str, password: str, actor: str = "operator") -> None:
    """Set the password of a local account (argon2id) and end the sessions opened with the old one.

    Parameters
    ----------
    transaction : Transaction
    subject, password : str
    actor : str
        Who sets it; a command, which writes to the database from outside the service, is run by the operator.
    """
    from argon2 import PasswordHasher

    if len(password) < 12:
        raise Problem(422, "password: at least 12 characters.")
    connection = transaction.connection
    connection.execute(PASSWORD.delete().where(PASSWORD.c.subject == subject))
    connection.execute(PASSWORD.insert().values(subject=subject, argon2=PasswordHasher().hash(password)))
    # The password may be changed because the old one was stolen, so its sessions end.
    connection.execute(SESSION.delete().where(SESSION.c.subject == subject))
    transaction.append([Event(kind="password_changed", actor=actor, subject=subject, body={})])


def verified_hash(database: Database, *, subject: str, password: str) -> str | None:
    """Return the stored hash of a local account if the password fits it, else None; both take the same time."""
    from argon2 import PasswordHasher
    from argon2.exceptions import VerificationError

    with database.reading() as connection:
        stored = _password_hash(connection, subject)
    try:
        # Without an account another hash is verified, so that the time does not reveal which accounts exist.
        PasswordHasher().verify(stored or _NOBODY, password)
    except VerificationError:
        return None
    return stored


def _password_hash(connection: Connection, subject: str) -> str | None:
    stored: str | None = connection.execute(select(PASSWORD.c.argon2).where(PASSWORD.c.subject == subject)).scalar()
    return stored


def open_local_session(transaction: Transaction, *, subject: str, verified: str) -> tuple[str, list[str]] | None:
    """Sign a person in after their password was verified; return the session token and the roles.

    The result is None if the account was ended or its password changed during the verification.

    Parameters
    ----------
    transaction : Transaction
    subject : str
    verified : str
        The stored hash that the password fitted.
    """
    connection = transaction.connection
    account = account_row(connection, subject)
    if account is None or is_ended(account) or _password_hash(connection, subject) != verified:
        return None
    roles = json.loads(account.roles)
    return open_session(transaction, subject=subject, roles=roles, method="password"), roles


def open_session(transaction: Transaction, *, subject: str, roles: Iterable[str], method: str) -> str:
    """Sign a person in: make a session token for a working day and record the login."""
    token = secrets.token_urlsafe(32)
    expires = utc((datetime.now(UTC) + timedelta(hours=_SESSION_HOURS)).timestamp())
    connection = transaction.connection
    # Delete sessions only a day after they ended: a clock that is some hours ahead must not sign everybody out.
    connection.execute(SESSION.delete().where(SESSION.c.expires < utc(time.time() - 86400)))
    lines = connection.execute(select(ACCOUNT.c.lines).where(ACCOUNT.c.subject == subject)).scalar()
    row = {
        "sha256": token_digest(token),
        "subject": subject,
        "roles": json.dumps(sorted(roles)),
        "expires": expires,
        "lines": lines,
    }
    connection.execute(SESSION.insert().values(**row))
    transaction.append([Event(kind="login", actor=subject, subject=subject, body={"method": method})])
    return token


def close_session(transaction: Transaction, token: str) -> None:
    """Sign a person out by ending the session early."""
    transaction.connection.execute(SESSION.delete().where(SESSION.c.sha256 == token_digest(token)))


def _checked(transaction: Transaction, subject: str, roles: Sequence[str], *, tables: Sequence[Table]) -> list[str]:
    """Return the roles in order, if they do not conflict with roles that the subject has in `tables`."""
    if not _SUBJECT.fullmatch(subject):
        raise ServiceError("subject: letters, digits and . _ @ : - only, at most 100 characters")
    unknown = sorted(set(roles) - set(ROLES))
    if unknown:
        raise ServiceError(f"roles: {unknown}; there are {', '.join(ROLES)}")
    held = set(roles)
    for table in tables:
        valid = table.c.revoked.is_(False) if table is TOKEN else true()
        own = select(table.c.roles).where(table.c.subject == subject, valid)
        held.update(*(json.loads(entry) for entry in transaction.connection.execute(own).scalars()))
    if "clinician" in held and held & set(SEES_ANSWERS):
        raise ServiceError(
            f"roles: {subject} would see the model's answers before reading the cases; give clinician and "
            f"{' or '.join(SEES_ANSWERS)} to different accounts"
        )
    return sorted(set(roles))


def _require_some(roles: Sequence[str]) -> None:
    if not roles:
        raise ServiceError(f"roles: none given; there are {', '.join(ROLES)}")


class Limiter:
    """A token bucket per caller: `rate` requests a second on average, `burst` at once.

    Examples
    --------
    >>> limiter = Limiter(rate=1.0, burst=2)
    >>> [limiter.wait("a", now=0.0), limiter.wait("a", now=0.0), limiter.wait("a", now=0.0)]
    [0.0, 0.0, 1.0]
    """

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, caller: str, *, n: int = 1, now: float | None = None) -> float:
        """Return 0 if `n` more requests are allowed now, else the seconds until they are."""
        at = time.monotonic() if now is None else now
        if len(self._left) > _MOST_CALLERS:
            self._forget(at)
        left = self._left_at(caller, at)
        # A batch larger than the bucket passes when the bucket is full.
        needed = min(float(n), self._burst)
        if left < needed:
            self._left[caller] = (left, at)
            return (needed - left) / self._rate
        self._left[caller] = (left - needed, at)
        return 0.0

    def give_back(self, caller: str, *, now: float | None = None) -> None:
        """Give back one request that turned out not to count."""
        at = time.monotonic() if now is None else now
        self._left[caller] = (min(self._burst, self._left_at(caller, at) + 1.0), at)

    def _left_at(self, caller: str, at: float) -> float:
        left, before = self._left.get(caller, (self._burst, at))
        return min(self._burst, left + (at - before) * self._rate)

    def _forget(self, at: float) -> None:
        """Forget callers with all requests left, because made-up names must not fill the memory."""
        self._left = {
            caller: entry for caller, entry in list(self._left.items()) if self._left_at(caller, at) < self._burst
        }
