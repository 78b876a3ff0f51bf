"""Indexes without the rows that nobody looks for in them: every decision paid for both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Decisions are found by the order of the log, not by their kind; one without a study is not found by it."""
    for name, table, columns, where in (
        ("event_kind", "event", ["kind", "seq"], "kind <> 'decision'"),
        ("decision_study", "decision", ["study_digest"], "study_digest IS NOT NULL"),
    ):
        op.drop_index(name, table)
        op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
