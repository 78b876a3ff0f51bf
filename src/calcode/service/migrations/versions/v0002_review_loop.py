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
    # A protocol that was set before there were several lines holds for every line.
    op.add_column("protocol", sa.Column("line", sa.Text(), nullable=False, server_default=""))
