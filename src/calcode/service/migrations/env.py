"""What Alembic runs: the migrations on the connection that `calcode.service.schema` hands over."""

from __future__ import annotations

from alembic import context

from calcode.service.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
