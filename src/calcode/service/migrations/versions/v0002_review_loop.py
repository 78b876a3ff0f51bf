"""Several lines, and the tables of the review loop."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Columns of lines; a model belongs to a line, so that one file may stand on several."""
    for table in ("account", "token", "session"):
        op.add_column(table, sa.Column("lines", sa.Text(), nullable=True))
    op.create_table(
        "token_use",
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("last_used", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("prefix"),
    )
    # SQLite cannot change a primary key: the table is made anew.
    op.rename_table("model", "model_0001")
    op.create_table(
        "model",
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("promises", sa.Text(), nullable=False),
        sa.Column("golden", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("line", "digest", name="model_line_pkey"),
    )
    columns = "line, digest, kind, state, added_by, file, promises, golden, why"
    op.execute(f"INSERT INTO model ({columns}) SELECT {columns} FROM model_0001")
    op.drop_table("model_0001")
    # The record that commits to a part holds its digest.
    op.execute("ALTER TABLE secret_part DROP COLUMN digest")
    # A protocol that was set before there were several lines holds for every line.
    op.add_column("protocol", sa.Column("line", sa.Text(), nullable=False, server_default=""))
    _reviews()
    _loop()
    _outbox()


def _reviews() -> None:
    """Tasks with a line and a day, reviews, policies with more to say, and the first visits of patients."""
    for name in ("draw", "u_second", "p_second"):
        op.add_column("decision", sa.Column(name, sa.Float(), nullable=True))
    op.add_column("decision", sa.Column("visit_until", sa.Text(), nullable=True))
    open_visit = sa.text("visit_until IS NOT NULL")
    op.create_index("decision_visit", "decision", ["visit_until"], sqlite_where=open_visit, postgresql_where=open_visit)
    seen = sa.text("kind IN ('case_viewed', 'answer_revealed')")
    op.create_index("event_seen", "event", ["subject", "actor"], sqlite_where=seen, postgresql_where=seen)
    # A lease is on the monotonic clock now; the old ones, in text, ended long ago.
    op.drop_column("task", "lease_until")
    op.add_column("task", sa.Column("lease_until", sa.Float(), nullable=True))
    for name in ("line", "due_at"):
        op.add_column("task", sa.Column(name, sa.Text(), nullable=True))
    op.execute("UPDATE task SET line = (SELECT decision.line FROM decision WHERE decision.id = task.decision)")
    op.create_index("task_decision", "task", ["decision"], unique=False)
    op.create_table(
        "review",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("reviewer", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("sureness", sa.Integer(), nullable=True),
        sa.Column("blind", sa.Boolean(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Text(), nullable=True),
        sa.Column("saved_at", sa.Text(), nullable=False),
        sa.Column("supersedes", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("review_decision", "review", ["decision"], unique=False)
    for name in ("visit_minutes", "second_reader"):
        op.add_column("policy", sa.Column(name, sa.Float(), nullable=True))
    op.add_column("policy", sa.Column("due_days", sa.Integer(), nullable=True))


def _loop() -> None:
    """Alarms, recalibrations, and the cache of the monitors."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "alarm",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("id", "line", "bag", "model", "monitor", "name")),
        sa.Column("raised_seq", number, autoincrement=False, nullable=False),
        sa.Column("raised_at", sa.Text(), nullable=False),
        sa.Column("e_value", sa.Float(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=True)
            for name in ("asked_by", "asked_as", "closed_by", "closed_why", "choice")
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "recalibration",
        sa.Column("seq", number, autoincrement=False, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("line", "model", "bag")),
        sa.Column("look", sa.Integer(), nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("upto_seq", number, autoincrement=False, nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "monitor",
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("upto_seq", number, autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("line", "name"),
    )


def _outbox() -> None:
    """Reports on their way."""
    op.create_table(
        "outbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("queued_at", sa.Text(), nullable=False),
        sa.Column("payload_digest", sa.Text(), nullable=True),
        sa.Column("done_at", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("outbox_waiting", "outbox", ["target", "done_at", "next_at"], unique=False)
    op.create_index("outbox_decision", "outbox", ["decision"], unique=False)
