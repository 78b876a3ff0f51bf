"""What Alembic runs: the migrations on the connection that `calcode.service.schema` hands over."""

from __future__ import annotations

from alembic import context

from calcode.service.tables import METADATA

# The name under which Alembic loads this file; a plain import does nothing.
if __name__ == "env_py":
    context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
    context.run_migrations()
