"""The version of the database's schema, which Alembic makes, upgrades and checks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from calcode.errors import ServiceError
from calcode.service.database import Database, parsed_url


def upgrade(database: Database, *, to: str = "head") -> None:
    """Bring the schema to a version, in one transaction; an empty database gets all tables.

    Parameters
    ----------
    database : Database
    to : str
        A revision; "head" is the newest.

    Raises
    ------
    ServiceError
        If the database cannot be read, or was made by a newer version of calcode.
    """
    from alembic import command
    from alembic.config import Config

    _require_known(database, current(database))
    with database.writing() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
        config.attributes["connection"] = connection
        command.upgrade(config, to)


def no_log(where: object) -> ServiceError:
    """Return the error for a missing log. A log is never made without a command: every coin would be tossed again."""
    return ServiceError(
        f"{where}: no log yet; mount the data folder, name the right database, or before the first start run: calcode "
        "service init SITE"
    )


def require_current(database: Database) -> None:
    """Raise if the database is older or newer than this version of calcode."""
    found, newest = current(database), revisions()[-1]
    if found is None:
        raise no_log(database.where)
    _require_known(database, found)
    if found != newest:
        raise ServiceError(
            f"{database.where}: its schema is {found}, this version of calcode needs {newest}; make a backup and run: "
            "calcode service upgrade SITE"
        )


def _require_known(database: Database, found: str | None) -> None:
    known = revisions()
    if found is not None and found not in known:
        raise ServiceError(
            f"{database.where}: its schema {found} is newer than this version of calcode, which knows {known[-1]}; "
            "install the version that the service ran with last, or a newer one"
        )


def current(database: Database) -> str | None:
    """The version of a database's schema; None for an empty database.

    Raises
    ------
    ServiceError
        If the database cannot be reached or read.
    """
    from alembic.migration import MigrationContext

    _require_utf8(database)
    try:
        with database.reading() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        raise database.trouble(error) from error


def _require_utf8(database: Database) -> None:
    """Refuse a PostgreSQL database of another encoding, which could not store every name or comment.

    The driver is asked directly: with SQL_ASCII it returns bytes for text, and SQLAlchemy cannot even connect.
    """
    if database.sqlite:
        return
    engine = create_engine(parsed_url(database.url))
    arguments, options = engine.dialect.create_connect_args(engine.url)
    try:
        with closing(engine.dialect.connect(*arguments, **options)) as connection:
            found = connection.info.parameter_status("server_encoding")
    except database.driver_error as error:
        raise database.trouble(error) from error
    if found != "UTF8":
        name = engine.url.database
        raise ServiceError(
            f"{name}: this PostgreSQL database holds text as {found}, and the service needs UTF8; make another one "
            f"with: createdb --encoding=UTF8 --locale=C --template=template0 {name}_utf8, and name it in the site file"
        )


def revisions() -> list[str]:
    """Return all versions of the schema, oldest first."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return [entry.revision for entry in ScriptDirectory.from_config(config).walk_revisions()][::-1]
