"""The version of the database's schema: made, upgraded and checked by Alembic."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from calcode.errors import ServiceError
from calcode.service.database import Database


def upgrade(database: Database, *, to: str = "head") -> None:
    """Bring the schema to a version, in one transaction; an empty database gets all tables.

    Parameters
    ----------
    database : Database
    to : str
        A revision; "head" is the newest.
    """
    from alembic import command
    from alembic.config import Config

    with database.writing() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def require_current(database: Database) -> None:
    """Raise if the database is older or newer than this version of calcode."""
    with database.reading() as connection:
        found, newest = current(connection), revisions()[-1]
    if found != newest:
        raise ServiceError(
            f"{database.url}: its schema is {found or 'empty'}, this version of calcode needs {newest}; make a backup "
            "and run: calcode service upgrade SITE"
        )


def current(connection: Connection) -> str | None:
    """The version of a database's schema; None for an empty database."""
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def revisions() -> list[str]:
    """All versions, oldest first."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return [entry.revision for entry in ScriptDirectory.from_config(config).walk_revisions()][::-1]
