"""The tables of the service (SERVICE.md 5), the same for SQLite and PostgreSQL.

`event` is the log. The tables of `DERIVED` repeat it in a form that can be queried, and can be rebuilt from it. The
other tables hold what must not be in the log: personal content, password hashes, sessions, the pulse of a process.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    text,
)

METADATA = MetaData()


def _text(name: str, *, key: bool = False, null: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, primary_key=key, nullable=null, unique=unique)


def _seq(name: str = "seq", *, key: bool = True) -> Column[int]:
    # Only an INTEGER becomes a rowid in SQLite; PostgreSQL needs 64 bits.
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Column(name, kind, primary_key=key, autoincrement=False, nullable=False)


def _partial(name: str, *columns: str, where: str) -> Index:
    """Return an index of only the rows that are searched for, so that the other rows, which are most, cost nothing."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


EVENT = Table(
    "event",
    METADATA,
    _seq(),
    _text("id"),
    _text("at"),
    _text("kind"),
    _text("actor"),
    _text("subject"),
    _text("body"),
    _text("prev"),
    _text("hash"),
    # Used by `of_kinds`.
    _partial("event_kind", "kind", "seq", where="kind <> 'decision'"),
    # Who saw which case and which answer.
    _partial("event_seen", "subject", "actor", where="kind IN ('case_viewed', 'answer_revealed')"),
)
#: One row: the end of the chain, and the last event (`deployed`) that changed what a line answers: model, policy.
#: PostgreSQL's writers queue for the lock of this row.
HEAD = Table(
    "head",
    METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    _seq(key=False),
    _text("hash"),
    _seq("deployed", key=False),
)
#: A part is found by the record that commits to it, whose body holds the digest: no index of random digests is needed.
SECRET_PART = Table(
    "secret_part",
    METADATA,
    _seq(),
    _text("name", key=True),
    Column("salt", LargeBinary, nullable=False),
    Column("content", LargeBinary, nullable=False),
    _text("media_type"),
    _text("delete_after", null=True),
)
DECISION = Table(
    "decision",
    METADATA,
    _seq(),
    _text("id", unique=True),
    _text("key", unique=True),
    _text("content_digest"),
    _text("group_digest", null=True),
    _text("study_digest", null=True),
    _text("line"),
    _text("model"),
    _text("action"),
    _text("reason"),
    _text("label", null=True),
    _text("released_set"),
    Column("p_audit", Float),
    Column("u", Float, nullable=False),
    Column("p_sample", Float, nullable=False),
    Column("representative", Boolean, nullable=False),
    Column("in_model", Boolean, nullable=False),
    Column("known_group", Boolean, nullable=False),
    _text("site", null=True),
    _text("device", null=True),
    # Numbers fixed beforehand that choose the image that stands for its patient, and whether a second person reads it.
    Column("draw", Float),
    Column("u_second", Float),
    Column("p_second", Float),
    # Time until which the patient's first visit is open, for images of that visit; NULL once it is closed.
    _text("visit_until", null=True),
    Index("decision_group", "group_digest"),
    _partial("decision_study", "study_digest", where="study_digest IS NOT NULL"),
    _partial("decision_visit", "visit_until", where="visit_until IS NOT NULL"),
)
SHADOW_DECISION = Table(
    "shadow_decision",
    METADATA,
    _seq(),
    _text("decision"),
    _text("model"),
    _text("action"),
    _text("reason"),
    _text("released_set"),
    Index("shadow_decision_model", "model"),
)
TASK = Table(
    "task",
    METADATA,
    _text("id", key=True),
    _text("decision"),
    _text("line", null=True),
    _text("why"),
    _text("opened_at"),
    _text("due_at", null=True),
    _text("state"),
    # A lease is not an event: it ends by itself, and a rebuild drops it. Its end is on the machine's monotonic clock.
    _text("lease_by", null=True),
    Column("lease_until", Float),
    Index("task_state", "state"),
    Index("task_decision", "decision"),
)
REVIEW = Table(
    "review",
    METADATA,
    _seq(),
    _text("id", unique=True),
    # NULL: a label that came from elsewhere.
    _text("task", null=True),
    _text("decision"),
    _text("line"),
    _text("reviewer"),
    _text("label"),
    Column("sureness", Integer),
    Column("blind", Boolean, nullable=False),
    _text("source"),
    _text("opened_at", null=True),
    _text("saved_at"),
    _text("supersedes", null=True),
    Index("review_decision", "decision"),
)
#: Reports to other systems; see `outbox`.
OUTBOX = Table(
    "outbox",
    METADATA,
    _text("id", key=True),
    # Record of the decision.
    _seq(key=False),
    _text("decision"),
    _text("kind"),
    _text("target"),
    _text("queued_at"),
    _text("payload_digest", null=True),
    _text("done_at", null=True),
    _text("receipt", null=True),
    Column("attempts", Integer, nullable=False),
    _text("next_at"),
    _text("fault", null=True),
    Index("outbox_waiting", "target", "done_at", "next_at"),
    Index("outbox_decision", "decision"),
)
#: A model may be on several lines, with one row for each.
MODEL = Table(
    "model",
    METADATA,
    _text("line", key=True),
    _text("digest", key=True),
    _text("kind"),
    _text("state"),
    _text("added_by"),
    _text("file"),
    _text("promises"),
    _text("golden"),
    _text("why"),
)
DEPLOYMENT = Table(
    "deployment",
    METADATA,
    _seq("from_seq"),
    _text("from_at"),
    _text("line"),
    _text("champion", null=True),
    _text("previous", null=True),
    _text("shadow", null=True),
    _text("by"),
    _text("why"),
)
#: A protocol of line "" applies to every line: it was set before there were several lines.
PROTOCOL = Table("protocol", METADATA, _seq("from_seq"), _text("line"), _text("digest"), _text("text"), _text("set_by"))
#: The columns after `set_by` are NULL in policies of the first version.
POLICY = Table(
    "policy",
    METADATA,
    _seq("from_seq"),
    _text("line"),
    Column("sample", Float, nullable=False),
    _text("set_by"),
    Column("visit_minutes", Float),
    Column("second_reader", Float),
    Column("due_days", Integer),
)
#: A capital that reached its threshold, for one bag; `choice` is the choice of the two people who close the alarm.
ALARM = Table(
    "alarm",
    METADATA,
    _text("id", key=True),
    _text("line"),
    _text("bag"),
    _text("model"),
    _text("monitor"),
    _text("name"),
    _seq("raised_seq", key=False),
    _text("raised_at"),
    # Logarithm of the capital, which may be beyond float64.
    Column("e_value", Float, nullable=False),
    _text("evidence"),
    _text("asked_by", null=True),
    _text("asked_as", null=True),
    _text("closed_by", null=True),
    _text("closed_why", null=True),
    _text("choice", null=True),
)
#: A site model made here, from the cases of a bag between two records.
RECALIBRATION = Table(
    "recalibration",
    METADATA,
    _seq(),
    _text("line"),
    _text("model"),
    _text("bag"),
    Column("look", Integer, nullable=False),
    Column("cases", Integer, nullable=False),
    _seq("upto_seq", key=False),
    _text("made_by"),
    _text("report"),
)
#: A cache: the state of a line's monitors after record `upto_seq` of the log.
MONITOR = Table(
    "monitor",
    METADATA,
    _text("line", key=True),
    _text("name", key=True),
    Column("version", Integer, nullable=False),
    _seq("upto_seq", key=False),
    _text("state"),
)
CHECKPOINT = Table("checkpoint", METADATA, _seq("size"), _text("root"), _text("head"), _text("note"), _text("at"))
#: `lines` is a JSON list of the lines that somebody is limited to; NULL: all.
ACCOUNT = Table(
    "account",
    METADATA,
    _text("subject", key=True),
    _text("roles"),
    _text("source"),
    _text("changed_by"),
    _text("lines", null=True),
    # Keyed digest of the identity provider's person. NULL for a local account, and until the next sign-in for an
    # account from before this column.
    _text("person", null=True),
)
TOKEN = Table(
    "token",
    METADATA,
    _text("sha256", key=True),
    _text("prefix", unique=True),
    _text("subject"),
    _text("roles"),
    _text("made_by"),
    _text("expires"),
    Column("revoked", Boolean, nullable=False),
    _text("lines", null=True),
)
#: When a token was last used, to the minute. This is not an event, because every request would make one.
TOKEN_USE = Table("token_use", METADATA, _text("prefix", key=True), _text("last_used"))
PASSWORD = Table("password", METADATA, _text("subject", key=True), _text("argon2"))
SESSION = Table(
    "session",
    METADATA,
    _text("sha256", key=True),
    _text("subject"),
    _text("roles"),
    _text("expires"),
    _text("lines", null=True),
)
PULSE = Table("pulse", METADATA, _text("boot", key=True), _text("at"))

#: Tables that `rebuild` makes from the log alone.
DERIVED = (
    DECISION,
    SHADOW_DECISION,
    TASK,
    REVIEW,
    OUTBOX,
    MODEL,
    DEPLOYMENT,
    PROTOCOL,
    POLICY,
    ALARM,
    RECALIBRATION,
    CHECKPOINT,
    ACCOUNT,
    TOKEN,
)
#: Working state in derived tables, which makes no events and is forgotten by a rebuild.
WORKING = frozenset({TASK.c.lease_by, TASK.c.lease_until, OUTBOX.c.attempts, OUTBOX.c.next_at, OUTBOX.c.fault})


def of_kinds(*kinds: str) -> ColumnElement[bool]:
    """Return a condition for events of these kinds, worded like their index, so that a query uses the index.

    Decisions are not in that index, because they are most of the log and are found by its order.
    """
    wanted = EVENT.c.kind.in_(kinds)
    return wanted if "decision" in kinds else and_(wanted, text("event.kind <> 'decision'"))


def install_guards(connection: Connection) -> None:
    """Make triggers that refuse to change or delete a record of the log; schema 0005 adds one against REPLACE."""
    if connection.dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER event_no_{verb.lower()} BEFORE {verb} ON event "
                    "BEGIN SELECT RAISE(ABORT, 'event: records are never changed or deleted'); END"
                )
            )
        return
    connection.execute(
        text(
            "CREATE FUNCTION event_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'event: records are never changed or deleted'; END $$"
        )
    )
    connection.execute(
        text(
            "CREATE TRIGGER event_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON event "
            "FOR EACH STATEMENT EXECUTE FUNCTION event_is_append_only()"
        )
    )


def grants(role: str) -> list[str]:
    """Return the grants of the service's role on PostgreSQL: on `event`, it may only add and read records.

    Parameters
    ----------
    role : str
        A role that does not own the tables; an owner can give itself any right.
    """
    name = '"' + role.replace('"', '""') + '"'
    others = ", ".join(table.name for table in METADATA.sorted_tables if table is not EVENT)
    return [
        f"GRANT SELECT, INSERT ON event TO {name}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {others} TO {name}",
        f"GRANT SELECT ON alembic_version TO {name}",
    ]
