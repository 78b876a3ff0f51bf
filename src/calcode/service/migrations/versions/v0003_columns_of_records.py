"""A record without the two columns that only repeated its body."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """The process and its clock stand in the body, which the hash covers; nothing looked for them in columns."""
    op.drop_column("event", "boot")
    op.drop_column("event", "mono")
