"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from calcode.service.tables import install_guards

revision = "0001"
down_revision = None


def upgrade() -> None:
    """All tables, the guards of the log and the row of its head."""
    op.create_table(
        "account",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("root", sa.Text(), nullable=False),
        sa.Column("head", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size"),
    )
    op.create_table(
        "decision",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("content_digest", sa.Text(), nullable=False),
        sa.Column("group_digest", sa.Text(), nullable=True),
        sa.Column("study_digest", sa.Text(), nullable=True),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("released_set", sa.Text(), nullable=False),
        sa.Column("p_audit", sa.Float(), nullable=True),
        sa.Column("u", sa.Float(), nullable=False),
        sa.Column("p_sample", sa.Float(), nullable=False),
        sa.Column("representative", sa.Boolean(), nullable=False),
        sa.Column("in_model", sa.Boolean(), nullable=False),
        sa.Column("known_group", sa.Boolean(), nullable=False),
        sa.Column("site", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("key"),
    )
    op.create_index("decision_group", "decision", ["group_digest"], unique=False)
    op.create_index("decision_study", "decision", ["study_digest"], unique=False)
    op.create_table(
        "deployment",
        sa.Column(
            "from_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("from_at", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("champion", sa.Text(), nullable=True),
        sa.Column("previous", sa.Text(), nullable=True),
        sa.Column("shadow", sa.Text(), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("from_seq"),
    )
    op.create_table(
        "event",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.Column("mono", sa.Float(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("prev", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("event_kind", "event", ["kind", "seq"], unique=False)
    op.create_table(
        "head",
        sa.Column("one", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column(
            "deployed", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.PrimaryKeyConstraint("one"),
    )
    op.create_table(
        "model",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("promises", sa.Text(), nullable=False),
        sa.Column("golden", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "password",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("argon2", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject"),
    )
    op.create_table(
        "policy",
        sa.Column(
            "from_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("sample", sa.Float(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("from_seq"),
    )
    op.create_table(
        "protocol",
        sa.Column(
            "from_seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("from_seq"),
    )
    op.create_table(
        "pulse",
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("boot"),
    )
    op.create_table(
        "secret_part",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("delete_after", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq", "name"),
    )
    op.create_table(
        "session",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("expires", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "shadow_decision",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("released_set", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("shadow_decision_model", "shadow_decision", ["model"], unique=False)
    op.create_table(
        "task",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lease_by", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("task_state", "task", ["state"], unique=False)
    op.create_table(
        "token",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("expires", sa.Text(), nullable=False),
        sa.Column("revoked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
        sa.UniqueConstraint("prefix"),
    )
    install_guards(op.get_bind())
    op.execute(f"INSERT INTO head (one, seq, hash, deployed) VALUES (1, 0, '{'0' * 64}', 0)")
