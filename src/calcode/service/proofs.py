"""Proof for one decision (SERVICE.md 4): its record and the path to a signed tree head, without other records."""

from __future__ import annotations

import base64
import hashlib
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, Field
from sqlalchemy import select

from calcode.errors import ServiceError
from calcode.service.audit.chain import Record, header_hash
from calcode.service.audit.notes import open_checkpoint
from calcode.service.audit.tree import root_from_proof
from calcode.service.log import Log
from calcode.service.problems import Problem
from calcode.service.tables import CHECKPOINT


class Proof(BaseModel):
    """A record, the hashes that lead from it to a root, and the signed checkpoint of that root."""

    seq: int
    at: str
    kind: str
    actor: str
    body: str | None = Field(default=None, description="null: not shown to programs")
    prev: str
    hash: str
    path: list[str]
    checkpoint: str
    body_sha256: str | None = Field(default=None, description="In the place of a body that is not shown")

    def for_programs(self) -> Self:
        """Return the proof without the record's content, which reveals who was in the model's data (SERVICE.md 11).

        The digest of the body reveals nothing, because the body holds keyed numbers that nobody can guess.
        """
        assert self.body is not None
        return self.model_copy(update={"body": None, "body_sha256": hashlib.sha256(self.body.encode()).hexdigest()})


def proof_of(record: Record, log: Log) -> Proof:
    """Return the proof of a record under the first checkpoint that covers it."""
    query = select(CHECKPOINT.c.size, CHECKPOINT.c.note).where(CHECKPOINT.c.size >= record.seq)
    with log.database.reading() as connection:
        found = connection.execute(query.order_by(CHECKPOINT.c.size).limit(1)).first()
    if found is None:
        raise Problem(409, "No checkpoint covers this record yet; ask again after the next one.")
    path = log.subtrees.proof(record.seq - 1, size=found.size)
    encoded = [base64.b64encode(node).decode() for node in path]
    return Proof(**record._asdict(), path=encoded, checkpoint=found.note)


def check_proof(proof: Proof, key: Ed25519PublicKey) -> str:
    """Check a proof and return in words what it shows; raise ServiceError if it is not valid.

    Without the record's content, a proof shows place, time and hash of the record but not what was decided. The answer
    has the same hash.

    Parameters
    ----------
    proof : Proof
    key : Ed25519PublicKey
        Key of the log's checkpoints.
    """
    digest = proof.body_sha256 if proof.body is None else hashlib.sha256(proof.body.encode()).hexdigest()
    if digest is None:
        raise ServiceError("proof: it has neither the record's body nor its SHA-256")
    fields = {name: getattr(proof, name) for name in ("prev", "seq", "at", "kind", "actor")}
    if header_hash(**fields, body_sha256=digest) != proof.hash:
        raise ServiceError("proof: the record was changed, its content does not have its hash")
    checkpoint = open_checkpoint(proof.checkpoint, key)
    try:
        path = [base64.b64decode(node, validate=True) for node in proof.path]
        root = root_from_proof(proof.hash, index=proof.seq - 1, size=checkpoint.size, proof=path)
    except ValueError as error:
        raise ServiceError(f"proof: {error}") from error
    if root != checkpoint.root:
        raise ServiceError("proof: the record is not under the root of this checkpoint")
    signed = f"Record {proof.seq:,} of {checkpoint.origin} is one of the {checkpoint.size:,} that were signed."
    if proof.body is not None:
        return signed
    return (
        f"{signed} The proof shows place, time, kind and sender of the record with the hash {proof.hash}, and not its "
        "content: compare the hash with that of the answer; an auditor can show what the record says."
    )
