"""`calcode log`: verify, prove and export the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calcode.cli.options import AsJson
from calcode.cli.running import command_group
from calcode.cli.service import SiteFile, tell
from calcode.errors import ServiceError


def verify(
    site: SiteFile,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Notes kept elsewhere: a folder, or a file of syslog lines.", metavar="PATH", exists=True),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Public key of the log; the site's own key if not given.", metavar="KEY")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every hash of the log and compare it with signed checkpoints; exit code 1 if it is not whole.

    Personal content is compared with the digests that the records hold of it; what was erased is not missed.

    Examples
    --------
    calcode log verify site.toml --checkpoints /mnt/notes
    """
    from sqlalchemy import select

    from calcode.method.signatures import read_public_key
    from calcode.metrics.wording import counted
    from calcode.service.checkpoint_targets import notes_in
    from calcode.service.checkpoints import check_against
    from calcode.service.commitments import changed_parts
    from calcode.service.keys import checkpoint_key
    from calcode.service.operations import opened
    from calcode.service.settings import read_site
    from calcode.service.tables import CHECKPOINT

    settings = read_site(site)
    with opened(settings) as log:
        if checkpoints is not None:
            notes = notes_in(checkpoints)
        else:
            with log.database.reading() as connection:
                notes = [tuple(row) for row in connection.execute(select(CHECKPOINT.c.size, CHECKPOINT.c.note))]
        public = checkpoint_key(settings).public_key() if key is None else read_public_key(key)
        found = check_against(log, notes, public) + changed_parts(log)
        if checkpoints is not None and not notes:
            found.append(f"{checkpoints}: no checkpoint is there; name the place that the service sends them to")
        size = log.head()[0]
    covered = max((at for at, _ in notes), default=0)
    whole = f"Whole: {counted(size, 'record')}, {counted(len(notes), 'checkpoint')}, "
    whole += f"{counted(size - covered, 'record')} after the last one."
    if not notes:
        whole = f"Whole: {counted(size, 'record')}. No checkpoint yet: a log made anew as a whole would not be seen."
    lines = [f"bad: {sentence}" for sentence in found] or [whole]
    facts = {"records": size, "checkpoints": len(notes), "exposed": size - covered, "found": found}
    tell("log verify", *lines, as_json=as_json, facts=facts)
    if found:
        raise typer.Exit(1)


def prove(
    site: SiteFile,
    decision: Annotated[str, typer.Argument(metavar="ID", help="Id of the decision.")],
    as_json: AsJson = False,
) -> None:
    """Print a proof that a decision is in the log, as JSON; it shows no other decision.

    Examples
    --------
    calcode log prove site.toml ID > proof.json
    """
    from sqlalchemy import select

    from calcode.service.audit.chain import Record
    from calcode.service.operations import opened
    from calcode.service.problems import Problem
    from calcode.service.proofs import proof_of
    from calcode.service.settings import read_site
    from calcode.service.tables import DECISION, EVENT

    with opened(read_site(site)) as log:
        columns = [EVENT.c[name] for name in Record._fields]
        query = select(*columns).join(DECISION, DECISION.c.seq == EVENT.c.seq).where(DECISION.c.id == decision)
        with log.database.reading() as connection:
            row = connection.execute(query).first()
        if row is None:
            raise ServiceError(f"{decision}: no decision has this id")
        try:
            proof = proof_of(Record._make(row), log)
        except Problem as problem:
            raise ServiceError(problem.detail) from problem
    text = proof.model_dump_json(indent=2)
    tell("log prove", text, as_json=as_json, facts={"proof": proof.model_dump()})


def check(
    proof: Annotated[Path, typer.Argument(metavar="PROOF", help="File of 'calcode log prove'.")],
    key: Annotated[str, typer.Option(help="Public key of the log ('ed25519:...' or its file).")],
    as_json: AsJson = False,
) -> None:
    """Check a proof without the log: only the public key of its checkpoints is needed.

    Examples
    --------
    calcode log check proof.json --key ed25519:...
    """
    from calcode.method.signatures import read_public_key
    from calcode.service.proofs import Proof, check_proof

    try:
        content = Proof.model_validate_json(proof.read_bytes())
    except ValueError as error:
        raise ServiceError(f"{proof}: not a proof of 'calcode log prove'") from error
    sentence = check_proof(content, read_public_key(key))
    tell("log check", sentence, as_json=as_json, facts={"seq": content.seq, "sentence": sentence})


def export(
    site: SiteFile,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="decisions .parquet, or AuditEvents .ndjson.")],
    line: Annotated[str | None, typer.Option(help="Whose decisions, if there are several lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the decisions of a line to Parquet, or all records as FHIR AuditEvent NDJSON.

    Examples
    --------
    calcode log export site.toml decisions.parquet
    """
    from calcode.cohorts import read_prompts
    from calcode.metrics.wording import counted
    from calcode.service.exports import export_audit_events, export_decisions
    from calcode.service.operations import opened
    from calcode.service.settings import read_site

    if target.suffix not in (".parquet", ".ndjson"):
        raise typer.BadParameter(f"{target} must end in .parquet or .ndjson", param_hint="FILE")
    settings = read_site(site)
    with opened(settings) as log:
        if target.suffix == ".parquet":
            lines = {entry.name: entry for entry in settings.lines if line in (None, entry.name)}
            if len(lines) != 1:
                there = ", ".join(entry.name for entry in settings.lines)
                raise ServiceError(f"{site}: name one line with --line; there are {there}")
            ((name, chosen),) = lines.items()
            n = export_decisions(log, target, line=name, classes=read_prompts(chosen.prompts).classes)
        else:
            n = export_audit_events(log, target, source=settings.name)
    sentence = f"Wrote {counted(n, 'row')} to {target}; the export is in the log."
    tell("log export", sentence, as_json=as_json, facts={"output": str(target), "rows": n})


group = command_group(
    "Verify, prove and export the audit log of the service.",
    verify,
    prove,
    check,
    export,
    examples=("calcode log verify site.toml",),
)
