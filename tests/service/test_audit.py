"""The audit room: chain, tree and signed notes, against definitions written again here."""

from __future__ import annotations

import base64
import hashlib
import math
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from calcode.errors import ServiceError
from calcode.files import canonical_json
from calcode.service.audit.chain import COPIED, GENESIS, Record, record_hash, verified_hashes
from calcode.service.audit.notes import Checkpoint, open_checkpoint, sign_checkpoint, verifier_key
from calcode.service.audit.tree import Subtrees, TreeHead, root, root_from_proof

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


class Stored(NamedTuple):
    """A row of the log as the database has it: the record and the columns that its body repeats."""

    seq: Any
    at: Any
    kind: Any
    actor: Any
    body: Any
    prev: Any
    hash: Any
    id: Any
    subject: Any


def rows(n: int, kind: str) -> list[Stored]:
    made: list[Stored] = []
    prev = GENESIS
    for seq in range(1, n + 1):
        # The copies stand at other places in every body, and change now and then.
        copies = {"id": f"id-{seq}", "subject": f"s{seq // 4}"}
        body = canonical_json({"aa": "x" * (7 * seq % 90), "kk": "y" * (5 * seq % 60), "n": seq, **copies, "zz": 1})
        fields: dict[str, Any] = {
            "prev": prev,
            "seq": seq,
            "at": f"t{seq}",
            "kind": kind,
            "actor": "pacs",
            "body": body,
        }
        prev = record_hash(**fields)
        made.append(Stored(hash=prev, **fields, **copies))
    return made


def test_the_hash_of_a_record_is_that_of_the_plan() -> None:
    body = '{"a":1}'
    text = f"calcode-log-1\nP\n7\nT\nkind\nactor\n{hashlib.sha256(body.encode()).hexdigest()}"
    made = record_hash(prev="P", seq=7, at="T", kind="kind", actor="actor", body=body)
    assert made == hashlib.sha256(text.encode()).hexdigest()


def test_a_stored_row_is_a_record_and_its_copies() -> None:
    assert Stored._fields == (*Record._fields, *COPIED)


@pytest.mark.parametrize("kind", ["decision", "shadow_decision", "export"])
def test_records_as_they_were_written_hold_together(kind: str) -> None:
    chain = rows(50, kind)
    hashes, broken = verified_hashes(chain)
    assert broken is None
    assert hashes == [row.hash for row in chain]
    later, broken = verified_hashes(chain[20:], seq=20, head=chain[19].hash)
    assert (later, broken) == (hashes[20:], None)


@pytest.mark.parametrize("kind", ["decision", "export"])
@pytest.mark.parametrize("field", Stored._fields)
@pytest.mark.parametrize("value", ["other", "", None, b"bytes", 7, 7.25])
def test_a_changed_column_is_found_at_its_record(kind: str, field: str, value: Any) -> None:
    chain = rows(9, kind)
    chain[2] = chain[2]._replace(**{field: value})
    hashes, broken = verified_hashes(chain)
    assert len(hashes) == 2
    assert broken is not None
    assert broken.seq == 3


@pytest.mark.parametrize("kind", ["decision", "export"])
@pytest.mark.parametrize("field", ["id", "subject"])
def test_the_copy_of_another_record_and_a_part_of_the_right_one_are_found(kind: str, field: str) -> None:
    own = getattr(rows(9, kind)[2], field)
    # The last one is the text of the body from its value to the name of the next key.
    beyond = own + {"id": '","kk', "subject": '","zz'}[field]
    assert f'"{field}":"{beyond}"' in rows(9, kind)[2].body
    for value in (getattr(rows(9, kind)[7], field), own[:1], beyond):
        chain = rows(9, kind)
        chain[2] = chain[2]._replace(**{field: value})
        broken = verified_hashes(chain)[1]
        assert broken is not None
        assert broken.seq == 3
        assert field in broken.why


def test_a_record_that_is_missing_or_replaced_with_its_own_hash_is_found() -> None:
    chain = rows(5, "decision")
    missing = verified_hashes(chain[:2] + chain[3:])[1]
    assert missing is not None
    assert missing.seq == 3
    swapped = verified_hashes([chain[0], chain[2], chain[1], *chain[3:]])[1]
    assert swapped is not None
    assert swapped.seq == 2
    forged = chain[2]._replace(body=chain[2].body.replace('"n":3', '"n":99'))
    fields = {name: getattr(forged, name) for name in ("prev", "seq", "at", "kind", "actor", "body")}
    chain[2] = forged._replace(hash=record_hash(**fields))
    broken = verified_hashes(chain)[1]
    assert broken is not None
    assert broken.seq == 4  # the next record does not follow the forged one


@pytest.mark.parametrize("kind", ["decision", "export"])
@pytest.mark.parametrize("body", ["", "{", '{"n":3', "[]", '"text"'])
def test_a_forged_body_without_its_copies_is_found_though_it_has_its_hash(kind: str, body: str) -> None:
    *before, last = rows(3, kind)
    fields = {name: getattr(last, name) for name in ("prev", "seq", "at", "kind", "actor")}
    hashes, broken = verified_hashes([*before, last._replace(body=body, hash=record_hash(**fields, body=body))])
    assert len(hashes) == 2
    assert broken is not None
    assert broken.seq == 3


@given(LEAVES, st.lists(st.integers(0, 40), max_size=6))
def test_the_root_is_that_of_rfc_6962_however_the_log_grew(leaves: list[str], stops: list[int]) -> None:
    one_by_one, in_pieces = TreeHead(), TreeHead()
    for leaf in leaves:
        one_by_one.extend([leaf])
    for start, stop in pairwise([0, *sorted(stops), len(leaves)]):
        in_pieces.extend(leaves[start:stop])
        assert (in_pieces.size, in_pieces.root()) == (len(leaves[:stop]), rfc6962_root(leaves[:stop]))
    assert one_by_one.root() == root(leaves) == rfc6962_root(leaves)


@given(LEAVES.filter(bool), st.sampled_from([1, 2, 4, 8, 64]), st.data())
def test_proofs_are_those_of_rfc_6962_and_prove_one_record_only(leaves: list[str], n: int, data: st.DataObject) -> None:
    """Also of a list that has grown since the last proof, and of one that it had outgrown."""
    subtrees = Subtrees(lambda after, upto: leaves[after:upto], leaves=n)
    for size in data.draw(st.lists(st.integers(1, len(leaves)), min_size=1, max_size=4)):
        index = data.draw(st.integers(0, size - 1))
        proof = subtrees.proof(index, size=size)
        assert proof == rfc6962_path(index, leaves[:size])
        assert root_from_proof(leaves[index], index=index, size=size, proof=proof) == root(leaves[:size])
        other = hashlib.sha256(leaves[index].encode()).hexdigest()
        assert root_from_proof(other, index=index, size=size, proof=proof) != root(leaves[:size])
        with pytest.raises(ValueError, match="proof"):
            root_from_proof(leaves[index], index=index, size=size, proof=[*proof, bytes(32)])


def test_after_the_first_proof_others_read_two_subtrees_and_not_the_log() -> None:
    leaves = [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(1000)]
    read = 0

    def hashes(after: int, upto: int) -> list[str]:
        nonlocal read
        read += upto - after
        return leaves[after:upto]

    subtrees = Subtrees(hashes, leaves=32)
    subtrees.proof(500, size=990)
    read = 0
    for index, size in ((3, 990), (987, 990), (640, 999), (0, 500)):
        assert subtrees.proof(index, size=size) == rfc6962_path(index, leaves[:size])
    assert read <= 4 * 2 * 32


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
    with pytest.raises(ServiceError, match="not signed with the key"):
        open_checkpoint(f"{note[:-5]}é\n", key.public_key())
    with pytest.raises(ServiceError, match="not a checkpoint"):
        open_checkpoint(note.replace("\n12\n", "\n²\n"), key.public_key())


def test_the_key_id_of_a_note_is_that_of_c2sp() -> None:
    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()
    expected = hashlib.sha256(b"origin\n\x01" + raw).digest()[:4]
    note = sign_checkpoint(Checkpoint(origin="origin", size=0, root=bytes(32), head="0" * 64), key)
    assert base64.b64decode(note.split()[-1])[:4] == expected
    assert verifier_key("origin", key.public_key()).split("+")[1] == expected.hex()
