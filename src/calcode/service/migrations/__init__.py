"""The schema, version by version (Alembic)."""
