"""Accounts of the identity provider belong to a person, not to a name that the provider may give to somebody else."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Who an account belongs to is known from the next sign-in on."""
    op.execute("ALTER TABLE account ADD COLUMN person TEXT")
