"""SQLite's third way to change a record: REPLACE deletes the old row without asking the triggers that guard it."""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """A record is appended or not at all; PostgreSQL knows no REPLACE, and its trigger sees ON CONFLICT."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE TRIGGER event_no_replace BEFORE INSERT ON event WHEN NEW.seq <= (SELECT max(seq) FROM event) "
            "BEGIN SELECT RAISE(ABORT, 'event: records are never changed or deleted'); END"
        )
