"""The audit room: chain, tree and signed notes, against definitions written again here."""

from __future__ import annotations

import base64
import hashlib
import math

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from calcode.errors import ServiceError
from calcode.service.audit.chain import GENESIS, Record, record_hash, verified_hashes
from calcode.service.audit.notes import Checkpoint, open_checkpoint, sign_checkpoint, verifier_key
from calcode.service.audit.tree import TreeHead, inclusion_proof, root, root_from_proof

LEAVES = st.lists(st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=40)


def rfc6962_root(leaves: list[str]) -> bytes:
    """MTH of RFC 6962, 2.1, as it is written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + bytes.fromhex(leaves[0])).digest()
    k = 2 ** (math.ceil(math.log2(len(leaves))) - 1)
    return hashlib.sha256(b"\x01" + rfc6962_root(leaves[:k]) + rfc6962_root(leaves[k:])).digest()


def rfc6962_path(m: int, leaves: list[str]) -> list[bytes]:
    """PATH of RFC 6962, 2.1.1."""
    if len(leaves) == 1:
        return []
    k = 2 ** (math.ceil(math.log2(len(leaves))) - 1)
    if m < k:
        return [*rfc6962_path(m, leaves[:k]), rfc6962_root(leaves[k:])]
    return [*rfc6962_path(m - k, leaves[k:]), rfc6962_root(leaves[:k])]


def records(n: int) -> list[Record]:
    made: list[Record] = []
    prev = GENESIS
    for seq in range(1, n + 1):
        fields = {
            "prev": prev,
            "seq": seq,
            "at": f"t{seq}",
            "kind": "decision",
            "actor": "pacs",
            "body": f'{{"n":{seq}}}',
        }
        prev = record_hash(**fields)
        made.append(Record(hash=prev, **fields))
    return made


def test_the_hash_of_a_record_is_that_of_the_plan() -> None:
    body = '{"a":1}'
    text = f"calcode-log-1\nP\n7\nT\nkind\nactor\n{hashlib.sha256(body.encode()).hexdigest()}"
    made = record_hash(prev="P", seq=7, at="T", kind="kind", actor="actor", body=body)
    assert made == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("field", ["at", "kind", "actor", "body"])
def test_a_changed_field_breaks_the_chain_at_its_record(field: str) -> None:
    chain = records(5)
    chain[2] = chain[2]._replace(**{field: "other"})
    hashes, broken = verified_hashes(chain)
    assert len(hashes) == 2
    assert broken is not None
    assert broken.seq == 3


def test_a_record_that_is_missing_or_replaced_with_its_own_hash_is_found() -> None:
    chain = records(5)
    assert verified_hashes(chain)[1] is None
    missing = verified_hashes(chain[:2] + chain[3:])[1]
    assert missing is not None
    assert missing.seq == 3
    forged = chain[2]._replace(body='{"n":99}')
    fields = {name: getattr(forged, name) for name in ("prev", "seq", "at", "kind", "actor", "body")}
    chain[2] = forged._replace(hash=record_hash(**fields))
    broken = verified_hashes(chain)[1]
    assert broken is not None
    assert broken.seq == 4  # the next record does not follow the forged one


@given(LEAVES)
def test_the_root_is_that_of_rfc_6962_however_the_log_grew(leaves: list[str]) -> None:
    head = TreeHead()
    for leaf in leaves:
        head.extend([leaf])
    assert head.root() == root(leaves) == rfc6962_root(leaves)


@given(LEAVES.filter(bool), st.data())
def test_proofs_are_those_of_rfc_6962_and_prove_one_record_only(leaves: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    proof = inclusion_proof(leaves, index)
    assert proof == rfc6962_path(index, leaves)
    assert root_from_proof(leaves[index], index=index, size=len(leaves), proof=proof) == root(leaves)
    other = hashlib.sha256(leaves[index].encode()).hexdigest()
    assert root_from_proof(other, index=index, size=len(leaves), proof=proof) != root(leaves)
    with pytest.raises(ValueError, match="proof"):
        root_from_proof(leaves[index], index=index, size=len(leaves), proof=[*proof, bytes(32)])


def test_a_note_is_opened_with_its_key_and_no_other() -> None:
    key = Ed25519PrivateKey.generate()
    made = Checkpoint(origin="hospital/skin", size=12, root=bytes(32), head="ab" * 32)
    note = sign_checkpoint(made, key)
    assert note.splitlines()[:3] == ["hospital/skin", "12", base64.b64encode(bytes(32)).decode()]
    assert open_checkpoint(note, key.public_key()) == made
    with pytest.raises(ServiceError, match="not signed with the key"):
        open_checkpoint(note, Ed25519PrivateKey.generate().public_key())
    with pytest.raises(ServiceError, match="not signed with the key"):
        open_checkpoint(note.replace("\n12\n", "\n13\n"), key.public_key())
    with pytest.raises(ServiceError, match="not a checkpoint"):
        open_checkpoint("nothing", key.public_key())


def test_the_key_id_of_a_note_is_that_of_c2sp() -> None:
    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()
    expected = hashlib.sha256(b"origin\n\x01" + raw).digest()[:4]
    note = sign_checkpoint(Checkpoint(origin="origin", size=0, root=bytes(32), head="0" * 64), key)
    assert base64.b64decode(note.split()[-1])[:4] == expected
    assert verifier_key("origin", key.public_key()).split("+")[1] == expected.hex()
