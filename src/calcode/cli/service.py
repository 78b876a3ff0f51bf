"""`calcode service`: what an operator does apart from running the service."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from calcode.cli.options import AsJson
from calcode.cli.running import command_group
from calcode.errors import ServiceError
from calcode.metrics.wording import counted

_DELETED = "Deleted {} parts; the records stay and the log still verifies."


def tell(command: str, *lines: str, as_json: bool, facts: dict[str, Any]) -> None:
    """Print the result of a command as sentences, or as one JSON object."""
    from calcode.cli.running import Screen

    if as_json:
        Screen(as_json).emit(command, facts)
    for line in () if as_json else lines:
        typer.echo(line)


LimitedTo = Annotated[list[str] | None, typer.Option("--line", help="Limited to this line; may be repeated.")]
SiteFile = Annotated[Path, typer.Argument(metavar="SITE", help="Site file (TOML).")]


def init(site: SiteFile, as_json: AsJson = False) -> None:
    """Make the database, the keys and the data folder of a site, before its first start.

    Examples
    --------
    calcode service init site.toml
    """
    from calcode.method.signatures import public_text
    from calcode.service import schema
    from calcode.service.audit.notes import verifier_key
    from calcode.service.database import Database
    from calcode.service.keys import checkpoint_key, make_missing_keys, site_secret
    from calcode.service.settings import read_site

    settings = read_site(site)
    if settings.checkpoints.key is not None:
        checkpoint_key(settings)  # checked first: if it is missing, nothing must be half made
    Path(settings.data).mkdir(parents=True, exist_ok=True, mode=0o700)
    with closing(Database(settings.database_url)) as database, database.readable_errors():
        schema.upgrade(database)
        with database.reading() as connection:
            make_missing_keys(connection, settings)
    site_secret(settings)
    key = checkpoint_key(settings).public_key()
    facts = {"data": settings.data, "key": public_text(key), "verifier_key": verifier_key(settings.name, key)}
    tell(
        "service init",
        f"Made {settings.data}. Keep secret.key and checkpoint.key also outside this machine.",
        f"Checkpoints are signed by {facts['key']}",
        f"In the form of other tools: {facts['verifier_key']}",
        f"Next: calcode service doctor {site}, then calcode serve {site}",
        as_json=as_json,
        facts=facts,
    )


def upgrade(site: SiteFile, as_json: AsJson = False) -> None:
    """Bring the database to this version's schema; make a backup and stop the service first.

    Examples
    --------
    calcode service upgrade site.toml
    """
    from calcode.service import schema
    from calcode.service.database import Database, only_service, sqlite_file
    from calcode.service.settings import read_site

    settings = read_site(site)
    file = sqlite_file(settings.database_url)
    if file is not None and not file.exists():
        raise schema.no_log(file)
    with closing(Database(settings.database_url)) as database, database.readable_errors(), only_service(database):
        before = schema.current(database)
        schema.upgrade(database)
    now = schema.revisions()[-1]
    facts = {"before": before, "now": now}
    tell("service upgrade", f"Schema {before or 'empty'} -> {now}", as_json=as_json, facts=facts)


def doctor(site: SiteFile, as_json: AsJson = False) -> None:
    """Examine disk, clock, rights, database, log, checkpoints and models; exit code 1 if something is bad.

    Examples
    --------
    calcode service doctor site.toml
    """
    from calcode.service.doctor import examine, sentences
    from calcode.service.settings import read_site

    findings = examine(read_site(site))
    facts = {"findings": [entry._asdict() for entry in findings]}
    tell("service doctor", *sentences(findings), as_json=as_json, facts=facts)
    if any(entry.level == "bad" for entry in findings):
        raise typer.Exit(1)


def backup(
    site: SiteFile,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    as_json: AsJson = False,
) -> None:
    """Copy a running SQLite log into one file.

    Examples
    --------
    calcode service backup site.toml backup.sqlite
    """
    from calcode.service.operations import back_up, opened
    from calcode.service.settings import read_site

    with opened(read_site(site)) as log:
        digest = back_up(log, target)
    tell(
        "service backup",
        f"Wrote {target} (SHA-256 {digest}). Try it: calcode service restore-test {site} {target}",
        as_json=as_json,
        facts={"output": str(target), "sha256": digest},
    )


def restore_test(
    site: SiteFile,
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="Backup file, or URL of a restored PostgreSQL.")],
    as_json: AsJson = False,
) -> None:
    """Restore a backup into a temporary place, verify it, and record that in the log.

    Examples
    --------
    calcode service restore-test site.toml backup.sqlite
    """
    from calcode.service.operations import opened
    from calcode.service.operations import restore_test as run
    from calcode.service.settings import read_site

    settings = read_site(site)
    with opened(settings) as log:
        size, found = run(settings, log, backup)
    good = f"Good: {size:,} records, a prefix of the live log. Recorded as backup_verified."
    lines = [f"bad: {sentence}" for sentence in found] or [good]
    tell("service restore-test", *lines, as_json=as_json, facts={"records": size, "found": found})
    if found:
        raise typer.Exit(1)


def retain(site: SiteFile, as_json: AsJson = False) -> None:
    """Delete personal content that is older than the retention in the site file, and what killed programs left.

    Examples
    --------
    calcode service retain site.toml
    """
    from calcode.service.operations import drop_leftovers, drop_unrecorded_pictures, opened
    from calcode.service.operations import retain as run
    from calcode.service.settings import read_site

    settings = read_site(site)
    with opened(settings) as log:
        pictures, folders = drop_unrecorded_pictures(settings, log), drop_leftovers(settings)
        n = run(settings, log)
    left = f"Deleted {pictures} pictures that no record names, and {folders} working folders of killed commands."
    facts = {"parts": n, "unrecorded_pictures": pictures, "working_folders": folders}
    tell("service retain", _DELETED.format(n), left, as_json=as_json, facts=facts)


def erase(
    site: SiteFile,
    why: Annotated[str, typer.Option(help="Reason, for the log; no names.")],
    group: Annotated[str | None, typer.Option(help="The patient, as requests name it.")] = None,
    decision: Annotated[str | None, typer.Option(help="Id of one decision.")] = None,
    as_json: AsJson = False,
) -> None:
    """Delete all personal content of a patient or of one decision. Backups keep theirs until they are overwritten.

    Examples
    --------
    calcode service erase site.toml --group patient-17 --why request
    """
    from calcode.service.operations import erase as run
    from calcode.service.operations import opened
    from calcode.service.settings import read_site

    if len(why.strip()) < 3:
        raise typer.BadParameter("give a reason of three letters or more; it stands in the log", param_hint="--why")
    settings = read_site(site)
    with opened(settings) as log:
        n = run(settings, log, group=group, decision=decision, why=why)
    tell("service erase", _DELETED.format(n), as_json=as_json, facts={"parts": n})


def rebuild(site: SiteFile, as_json: AsJson = False) -> None:
    """Rebuild the tables that repeat the log, from the log alone; stop the service first.

    Examples
    --------
    calcode service rebuild site.toml
    """
    from calcode.service import projections
    from calcode.service.database import only_service
    from calcode.service.log import Event
    from calcode.service.operations import opened
    from calcode.service.settings import read_site

    with opened(read_site(site)) as log, only_service(log.database), log.transaction() as transaction:
        n = projections.rebuild(transaction.connection)
        transaction.append([Event(kind="rebuilt", actor="operator", body={"records": n})])
    tell("service rebuild", f"Replayed {n:,} records.", as_json=as_json, facts={"records": n})


def outbox(
    site: SiteFile,
    retry: Annotated[str | None, typer.Option(metavar="TARGET", help="Try its reports again now.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the reports that wait for each receiver, or make those of one receiver due now.

    Examples
    --------
    calcode service outbox site.toml --retry pacs
    """
    from calcode.service import outbox as reports
    from calcode.service.operations import opened
    from calcode.service.settings import read_site

    settings = read_site(site)
    receivers = [entry.name for entry in settings.deliveries]
    if retry is not None and retry not in receivers:
        raise typer.BadParameter(
            f"the site file has no delivery {retry}; it has {', '.join(receivers) or 'none'}", param_hint="--retry"
        )
    with opened(settings) as log:
        if retry is not None:
            with log.database.writing() as connection:
                n = reports.retry(connection, retry)
            said = f"{counted(n, 'report')} for {retry} {'is' if n == 1 else 'are'} due now."
            tell("service outbox", said, as_json=as_json, facts={"due": n})
            return
        with log.database.reading() as connection:
            found = reports.waiting(connection, holding=settings.holding)
    lines = [
        f"{name}: {entry.rows:,} wait, {entry.held:,} of them for a reader, the oldest other since "
        f"{entry.since or 'never'}, {entry.attempts} attempts, fault: {entry.fault or 'none'}"
        for name, entry in found.items()
    ]
    facts = {"waiting": {name: entry._asdict() for name, entry in found.items()}}
    tell("service outbox", *(lines or ["No report waits."]), as_json=as_json, facts=facts)


def labels(
    site: SiteFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with label, decision or study, line, source.")],
    as_json: AsJson = False,
) -> None:
    """Record results of the laboratory from a CSV file, all of them or none.

    Examples
    --------
    calcode service labels site.toml results.csv
    """
    from calcode.cohorts import read_prompts
    from calcode.service.keys import site_secret
    from calcode.service.label_files import LabelledLine, read_label_file, receive_labels
    from calcode.service.operations import opened
    from calcode.service.problems import Problem
    from calcode.service.settings import read_site

    settings = read_site(site)
    secret = site_secret(settings)
    lines = {
        line.name: LabelledLine(read_prompts(line.prompts).classes, secret.for_line(line.name))
        for line in settings.lines
    }
    try:
        given = read_label_file(file.read_text(encoding="utf-8"))
        with opened(settings) as log, log.transaction() as transaction:
            recorded = receive_labels(transaction, given, lines=lines, actor="operator")
    except UnicodeDecodeError as error:
        raise ServiceError(f"{file}: not a CSV file in UTF-8; save the sheet as CSV UTF-8") from error
    except OSError as error:
        raise ServiceError(f"{file}: {error.strerror}; give a file that can be read") from error
    except Problem as error:
        raise ServiceError(f"{file}: {error}") from error
    said = f"{counted(len(recorded), 'label')} of {file.name} {'is' if len(recorded) == 1 else 'are'} in the log now."
    tell(
        "service labels",
        f"{said} The same one again changes nothing.",
        as_json=as_json,
        facts={"labels": len(recorded)},
    )


def recalibrate(
    site: SiteFile,
    line: Annotated[str | None, typer.Option(help="May be left out where there is one line.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the site model that the protocol allows now, from the reviewed cases, as a candidate with its report.

    It answers no request yet: it runs in the shadow first, and two accounts promote it. The service may keep running.

    Examples
    --------
    calcode service recalibrate site.toml
    """
    from calcode.service.models import Models
    from calcode.service.operations import opened
    from calcode.service.problems import Problem
    from calcode.service.recalibration import candidate, sentences
    from calcode.service.settings import read_site

    settings = read_site(site)
    named = {entry.name: entry for entry in settings.lines}
    if line is None and len(named) > 1:
        raise typer.BadParameter(f"name one of {', '.join(named)}", param_hint="--line")
    if line is not None and line not in named:
        raise typer.BadParameter(f"there are {', '.join(named)}", param_hint="--line")
    with opened(settings) as log:
        models = Models(named[line or next(iter(named))], log, folder=settings.path("models"))
        try:
            report, change = candidate(models, log, actor="operator")
            with log.transaction() as transaction:
                change(transaction)
        except Problem as problem:
            raise ServiceError(problem.detail) from problem
    tell("service recalibrate", *sentences(report), as_json=as_json, facts=report)


def token(
    site: SiteFile,
    subject: Annotated[str, typer.Argument(metavar="NAME", help="Program or person.")],
    role: Annotated[list[str], typer.Option(help="program, clinician, approver, engineer, auditor, admin.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="Valid for this long.")] = 365,
    line: LimitedTo = None,
    as_json: AsJson = False,
) -> None:
    """Make a token; it is shown once. A running service takes it within a second.

    Examples
    --------
    calcode service token site.toml pacs --role program
    """
    from calcode.service.operations import opened
    from calcode.service.people import make_token, require_lines
    from calcode.service.settings import read_site

    settings = read_site(site)
    require_lines(line, known=[entry.name for entry in settings.lines])
    with opened(settings) as log, log.transaction() as transaction:
        made = make_token(transaction, subject=subject, roles=role, days=days, actor="operator", lines=line)
    tell("service token", made, as_json=as_json, facts={"token": made, "subject": subject, "roles": role})


def account(
    site: SiteFile,
    subject: Annotated[str, typer.Argument(metavar="NAME", help="Person.")],
    role: Annotated[list[str], typer.Option(help="program, clinician, approver, engineer, auditor, admin.")],
    password: Annotated[
        str | None,
        typer.Option(
            prompt=True, hide_input=True, confirmation_prompt=True, help="12 characters or more; asked for if left out."
        ),
    ] = None,
    line: LimitedTo = None,
    as_json: AsJson = False,
) -> None:
    """Make a local account or change its roles, lines and password.

    Examples
    --------
    calcode service account site.toml e.meier --role engineer
    """
    from calcode.service.operations import opened
    from calcode.service.people import require_lines, set_password, set_roles
    from calcode.service.problems import Problem
    from calcode.service.settings import read_site

    assert password is not None, "asked for"
    settings = read_site(site)
    require_lines(line, known=[entry.name for entry in settings.lines])
    try:
        with opened(settings) as log, log.transaction() as transaction:
            set_roles(transaction, subject=subject, roles=role, source="local", actor="operator", lines=line)
            set_password(transaction, subject=subject, password=password)
    except Problem as problem:
        raise ServiceError(problem.detail) from problem
    facts = {"subject": subject, "roles": sorted(role)}
    tell("service account", f"{subject}: {', '.join(sorted(role))}", as_json=as_json, facts=facts)


def release(
    site: SiteFile,
    subject: Annotated[str, typer.Argument(metavar="NAME", help="Account that signs in with the identity provider.")],
    as_json: AsJson = False,
) -> None:
    """Let the next person whom the identity provider calls so have the account, with its lines, readings and its end.

    For a provider whose identifiers have changed. Another person needs another name at the provider.

    Examples
    --------
    calcode service release site.toml a.jones
    """
    from calcode.service.operations import opened
    from calcode.service.people import release_account
    from calcode.service.settings import read_site

    with opened(read_site(site)) as log, log.transaction() as transaction:
        release_account(transaction, subject=subject, actor="operator")
    tell(
        "service release",
        f"The next person whom the identity provider calls {subject} has this account.",
        as_json=as_json,
        facts={"subject": subject},
    )


def grants(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="PostgreSQL role of the service.")],
    as_json: AsJson = False,
) -> None:
    """Print the SQL that lets the service add and read records and nothing else; run it as the owner of the tables.

    Examples
    --------
    calcode service grants calcode_service | psql calcode
    """
    from calcode.service.tables import grants as statements

    lines = [f"{statement};" for statement in statements(role)]
    tell("service grants", *lines, as_json=as_json, facts={"statements": lines})


def sbom(as_json: AsJson = False) -> None:
    """Print the software that is installed for the service, as CycloneDX JSON.

    Examples
    --------
    calcode service sbom > sbom.json
    """
    from calcode.service.exports import software_bill

    bill = software_bill()
    tell("service sbom", json.dumps(bill, indent=2), as_json=as_json, facts={"sbom": bill})


group = command_group(
    "Operate the decision service: set up, examine, back up, erase.",
    *(init, upgrade, doctor, backup, restore_test, retain, erase, rebuild, outbox, labels, recalibrate),
    *(token, account, release, grants, sbom),
    examples=("calcode service init site.toml", "calcode service doctor site.toml"),
)
