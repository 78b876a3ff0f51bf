"""Decisions over HTTP: what is admitted, refused, repeated, deferred; and what is known of them later."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import gc
import itertools
import json
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.sites import Site, embeddings, make_site, running, token_for, wait_until
from sqlalchemy import select
from typer.testing import CliRunner

from calcode import Calcode
from calcode.cli.app import app
from calcode.cohorts import write_features
from calcode.errors import CalcodeError
from calcode.files import canonical_json
from calcode.method.signatures import read_public_key
from calcode.service import batches, bodies, line, writer
from calcode.service.admission import Case, parse_request
from calcode.service.app import make_app
from calcode.service.audit.chain import record_hash
from calcode.service.audit.notes import open_checkpoint
from calcode.service.bodies import body_text
from calcode.service.keys import SiteSecret, checkpoint_key
from calcode.service.operations import erase, opened
from calcode.service.problems import Problem
from calcode.service.proofs import Proof, check_proof
from calcode.service.service import Service
from calcode.service.tables import DECISION, EVENT, SECRET_PART, TASK


def body(row: Any, **facts: Any) -> dict[str, Any]:
    return {"embedding": [float(value) for value in row], **facts}


def kinds(service: Service) -> list[str]:
    with service.database.reading() as connection:
        return list(connection.execute(select(EVENT.c.kind).order_by(EVENT.c.seq)).scalars())


def stored(service: Service, table: Any) -> list[Any]:
    with service.database.reading() as connection:
        return list(connection.execute(select(table)).all())


def test_threads_of_blas_do_not_spin_beside_a_service(tmp_path: Path) -> None:
    """In a process of its own, where nothing else has a say in the threads of BLAS."""
    site = make_site(tmp_path)
    script = (
        "import sys; from threadpoolctl import ThreadpoolController; from calcode.service.service import Service\n"
        "from calcode.service.settings import read_site; from calcode.service.admission import DecisionRequest\n"
        "import numpy as np; blas = ThreadpoolController().select(user_api='blas').limit(limits=2)\n"
        "with Service(read_site(sys.argv[1])) as service:\n"
        "    admission = service.admission['skin']; row = np.ones(admission.dimension, dtype=np.float32)\n"
        "    case = admission.case(DecisionRequest(embedding_f32=b'', image_id='one'), row, key=None, actor='me')\n"
        "    service.writer.submit([case]).result()\n"
        "    print(min(library['num_threads'] for library in ThreadpoolController().info()))\n"
        "print(max(library['num_threads'] for library in ThreadpoolController().info()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(site.file)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "2"], done.stdout + done.stderr


def test_the_answer_is_that_of_decide_on_the_stored_embedding(site: Site) -> None:
    rows = embeddings(30)
    model = Calcode.load(site.folder / "model.safetensors")
    with running(site) as (service, call):
        answers = [
            call("POST", "/v1/decisions", json=body(row, group=f"p{i}", image_id=f"i{i}")).json()
            for i, row in enumerate(rows)
        ]
        line_model = service.models["skin"].champion
        contents = [part.content for part in stored(service, SECRET_PART) if part.name == "embedding"]
    kept = np.stack([np.frombuffer(content, "<f4") for content in contents])
    assert (kept == rows).all()
    decisions = model.decide(line_model.evidence(kept))
    for answer, decision in zip(answers, decisions, strict=True):
        assert answer["action"] == decision.action.name.lower()
        assert answer["set"] == list(decision.released)
        assert answer["p_audit"] == decision.p_audit
        assert answer["model"] == model.digest_
        assert answer["promises"] == list(model.promises_)
        assert "not a medical device" in answer["notice"]
    assert {answer["action"] for answer in answers} >= {"set", "defer"}


def test_numbers_and_base64_give_the_same_decision_and_the_same_content(site: Site) -> None:
    row = embeddings(1)[0]
    with running(site) as (_, call):
        first = call("POST", "/v1/decisions", json=body(row), headers={"Idempotency-Key": "k"})
        encoded = base64.b64encode(row.tobytes()).decode()
        again = call("POST", "/v1/decisions", json={"embedding_f32": encoded}, headers={"Idempotency-Key": "k"})
    assert again.headers["Idempotent-Replay"] == "true"
    assert again.json() == first.json()


def test_the_same_key_with_other_content_is_a_conflict_and_recorded(site: Site) -> None:
    one, two = embeddings(2)
    with running(site) as (service, call):
        assert call("POST", "/v1/decisions", json=body(one, image_id="x")).status_code == 200
        for image, facts in ((two, {}), (one, {"group": "someone"}), (one, {"site": "north"}), (one, {"device": "c"})):
            answer = call("POST", "/v1/decisions", json=body(image, image_id="x", **facts))
            assert answer.status_code == 409
            assert answer.headers["content-type"] == "application/problem+json"
        assert kinds(service).count("decision") == 1
        assert kinds(service).count("refused") == 4


def test_the_same_key_twice_in_one_block_is_decided_once(site: Site) -> None:
    one, two = embeddings(2)
    with running(site) as (service, _):
        admission = service.admission["skin"]
        wanted = [parse_request(json.dumps(body(row, image_id="x")).encode()) for row in (one, one, two)]
        cases = [admission.case(entry, admission.vector(entry), key=None, actor="t") for entry in wanted]
        first, second, third = service.writer.submit(cases).result()
        assert (first.replay, second.replay) == (False, True)
        assert first.record == second.record
        assert third.status == 409
        assert (kinds(service).count("decision"), kinds(service).count("refused")) == (1, 1)


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"embedding": [1.0, 2.0]}, "embedding: 2 numbers, this line takes 16."),
        ({"embedding": [0.0] * 16}, "embedding: not finite in float32, or of length zero."),
        ({"embedding": [1e300] * 16}, "embedding: not finite in float32, or of length zero."),
        ({"embedding": [True] * 16}, "embedding.0: Input should be a valid number."),
        ({"embedding_f32": "###"}, "embedding_f32: not base64"),
        ({"embedding_f32": 5}, "embedding_f32: not base64"),
        ({"embedding_f32": "AAAA"}, "embedding_f32: not base64 of little-endian float32"),
        ({}, "give exactly one of embedding"),
        ({"embedding": [1.0] * 16, "embedding_f32": "AAAA"}, "give exactly one of embedding"),
        ({"embedding": [1.0] * 16, "weight": 3}, "body: a field that is not known; known are embedding, "),
        ({"embedding": [1.0] * 16, "prompt_digest": "f" * 64}, "prompt_digest: this line has the prompts"),
        ({"embedding": [1.0] * 16, "image_id": None}, "Send an Idempotency-Key header or an image_id"),
        ({"image": "AAAA"}, "image: this line has no image tower"),
    ],
)
def test_bad_input_is_refused_with_one_sentence_and_recorded_without_content(
    site: Site, sent: dict[str, Any], sentence: str
) -> None:
    with running(site) as (service, call):
        answer = call("POST", "/v1/decisions", json={"image_id": "i", "group": "Anna Example"} | sent)
        assert answer.status_code == 422
        assert sentence in answer.json()["detail"]
        (event,) = [row for row in stored(service, EVENT) if row.kind == "refused"]
        assert event.actor == "test-program"
        assert "Anna" not in event.body
        assert stored(service, DECISION) == []


@pytest.mark.parametrize("sent", [b"{", b'{"embedding": [NaN]}', b'{"embedding": [1e999]}', b"[]", b"\xff", b""])
def test_bodies_that_are_no_json_are_refused(site: Site, sent: bytes) -> None:
    with running(site) as (_, call):
        assert call("POST", "/v1/decisions", content=sent).status_code == 422


def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with running(make_site(tmp_path, lines="[limits]\nbody_bytes = 2000\nbatch_bytes = 2000")) as (service, call):
        headers = {"Content-Type": "application/x-ndjson"}
        for path in ("/v1/decisions", "/v1/decisions/batch"):
            assert call("POST", path, content=b"x" * 3000, headers=headers).status_code == 413
            # In pieces, without its size: refused with the piece that is too much.
            assert call("POST", path, content=(b" " * 1500 for _ in range(2)), headers=headers).status_code == 413
        assert kinds(service).count("refused") == 4


def test_a_sender_who_leaves_before_the_body_is_whole_is_no_error_of_the_service(site: Site) -> None:
    sent: list[Any] = []
    received = iter([{"type": "http.request", "body": b'{"emb', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    with running(site) as (service, _):
        token = token_for(service.log, "program")
        service.tokens.reload()
        scope = {"type": "http", "method": "POST", "path": "/v1/decisions", "query_string": b"", "root_path": ""}
        headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-length", b"5000")]
        before = kinds(service)
        asyncio.run(make_app(service)({**scope, "client": ("127.0.0.1", 1), "headers": headers}, receive, send))
        assert sent[0]["status"] == 400
        assert kinds(service) == before


def test_a_full_queue_is_busy_and_writes_nothing(tmp_path: Path) -> None:
    with running(make_site(tmp_path, lines="[limits]\nqueue = 4")) as (service, call):
        gate, inside = threading.Event(), threading.Event()

        def block(_: Any) -> None:
            inside.set()
            gate.wait(240)

        service.writer.change(block)
        assert inside.wait(240)
        admission = service.admission["skin"]
        futures = []
        for i, row in enumerate(embeddings(4)):
            wanted = parse_request(json.dumps(body(row, image_id=str(i))).encode())
            futures.append(service.writer.submit([admission.case(wanted, row, key=None, actor="t")]))
        before = len(kinds(service))
        answer = call("POST", "/v1/decisions", json=body(row, image_id="late"))
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "1"
        assert len(kinds(service)) == before
        (counted,) = service.refusals.events()
        assert (counted.actor, counted.body["counts"]) == ("test-program", {"503": 1})
        gate.set()
        assert all(len(future.result(240)) == 1 for future in futures)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([1, 2, 4, 64]))
def test_jobs_are_taken_in_order_in_blocks_with_changes_alone_and_all_before_the_end(data: Any, block: int) -> None:
    """The writer's queue without its thread: what is put, taken and held over, in any order, and then the end."""
    taking = writer.Writer(None, {}, None, queue=10**6, block=block)  # type: ignore[arg-type]
    put: list[Any] = []
    taken: list[Any] = []

    def take() -> bool:
        jobs = taking._take()
        taken.extend(jobs)
        assert len(jobs) <= 1 or not any(job.change for job in jobs)
        assert sum(len(job.cases) for job in jobs[:-1]) < block
        return bool(jobs)

    for n in data.draw(st.lists(st.integers(-1, 5), max_size=25)):
        if n < 0:
            assert len(taken) == len(put) or take()
            continue
        put.append(writer._Job([None] * n, Future(), None if n else len))  # type: ignore[list-item]
        taking._put(put[-1])
    taking._stopping = True
    taking._jobs.put(None)
    while take():
        pass
    assert [id(job) for job in taken] == [id(job) for job in put]
    assert taking.n_waiting == 0
    assert not taking._take(), "the end stays the end"


def test_a_request_that_nobody_waits_for_any_more_is_recorded_and_the_next_are_answered(site: Site) -> None:
    """A stop in a hurry cancels requests, and ends their loop, while the writer has them."""
    gate, inside = threading.Event(), threading.Event()

    def block(_: Any) -> None:
        inside.set()
        gate.wait(240)

    with running(site) as (service, call):
        admission = service.admission["skin"]
        wanted = [parse_request(json.dumps(body(row, image_id=str(i))).encode()) for i, row in enumerate(embeddings(3))]
        cases = [admission.case(entry, admission.vector(entry), key=None, actor="t") for entry in wanted]

        async def given_up() -> list[Any]:
            first, *others = [asyncio.create_task(service.writer.decided([case])) for case in cases[:2]]
            await asyncio.sleep(0)
            first.cancel()
            gate.set()
            return await asyncio.gather(*others)

        async def left() -> None:
            waiting = asyncio.create_task(service.writer.decided(cases[2:]))
            await asyncio.sleep(0)
            del waiting

        service.writer.change(block)
        assert inside.wait(240)
        ((second,),) = asyncio.run(given_up())
        assert second.body["action"] in ("label", "set", "defer")
        gate.clear()
        inside.clear()
        service.writer.change(block)
        assert inside.wait(240)
        asyncio.run(left())
        gate.set()
        assert call("POST", "/v1/decisions", json=body(embeddings(1)[0], image_id="next")).status_code == 200
        assert kinds(service).count("decision") == 4


@pytest.mark.parametrize("patience", [None, 240.0])
def test_answers_leave_before_the_next_block_unless_their_loop_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float | None
) -> None:
    with running(make_site(tmp_path, lines="[limits]\nblock = 1")) as (service, _):
        admission = service.admission["skin"]
        wanted = [parse_request(json.dumps(body(row, image_id=str(i))).encode()) for i, row in enumerate(embeddings(2))]
        cases = [admission.case(entry, admission.vector(entry), key=None, actor="t") for entry in wanted]
        if patience is not None:
            monkeypatch.setattr(writer, "_LEAVING_SECONDS", patience)

        async def first() -> int:
            await service.writer.decided(cases[:1])
            if patience is None:
                # Nothing else runs in this loop until the second image is decided.
                wait_until(lambda: kinds(service).count("decision") == 2)
            else:
                time.sleep(0.5)
            return kinds(service).count("decision")

        async def both() -> int:
            return (await asyncio.gather(first(), service.writer.decided(cases[1:])))[0]

        assert asyncio.run(both()) == (2 if patience is None else 1)


def test_a_model_that_fails_defers_that_image_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """SERVICE 12: `decide` raises. The others of the block are answered; the failure is a record and a task."""
    rows = embeddings(5)
    rows[2] = rows[0] * 0.5  # a mark that the broken model knows
    real = line.LineModel.answers

    def broken(self: Any, vectors: Any, **others: Any) -> Any:
        if (np.abs(np.linalg.norm(vectors, axis=1) - 0.5) < 1e-3).any():
            raise FloatingPointError("secret detail")
        return real(self, vectors, **others)

    with running(site) as (service, call):
        monkeypatch.setattr(line.LineModel, "answers", broken)
        lines = "".join(json.dumps(body(row, image_id=str(i))) + "\n" for i, row in enumerate(rows))
        answers = call(
            "POST", "/v1/decisions/batch", content=lines, headers={"Content-Type": batches.NDJSON}
        ).text.splitlines()
        statuses = [json.loads(answer).get("status", 200) for answer in answers]
        assert statuses == [200, 200, 500, 200, 200]
        failed = json.loads(answers[2])["decision"]
        assert (failed["action"], failed["reason"], failed["set"]) == ("defer", "error", [])
        assert failed["id"] in {task.decision for task in stored(service, TASK)}
        alone = call("POST", "/v1/decisions", json=body(rows[2], image_id="2"))
        assert alone.status_code == 500
        assert alone.headers["Idempotent-Replay"] == "true"
        assert "secret detail" not in alone.text
        assert service.log.verify().broken is None


def test_numbers_that_are_not_finite_are_an_error_of_the_model(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with Service(site.settings) as service:
        (models,) = service.models.values()
        champion, nobody = models.champion, [None] * 3
        decisions = champion.model.decide(champion.evidence(embeddings(3)))
        for column in ("scores", "p_audit"):
            for value in (np.nan, np.inf, -np.inf):
                numbers = getattr(decisions, column).copy()
                numbers.flat[-1] = value
                broken = dataclasses.replace(decisions, **{column: numbers})
                monkeypatch.setattr(type(champion.model), "decide", lambda *_, broken=broken: broken)
                with pytest.raises(FloatingPointError, match="not finite"):
                    champion.answers(embeddings(3), groups=nobody, group_digests=nobody)


def test_a_row_that_the_model_refuses_does_not_spoil_its_block(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from calcode.errors import EvidenceError

    real = line.LineModel.answers

    def picky(self: Any, vectors: Any, **others: Any) -> Any:
        if (vectors[:, 0] == 0.25).any():
            raise EvidenceError("no")
        return real(self, vectors, **others)

    rows = embeddings(3)
    rows[1, 0] = 0.25
    with running(site) as (service, call):
        monkeypatch.setattr(line.LineModel, "answers", picky)
        lines = "\n".join(json.dumps(body(row, image_id=str(i))) for i, row in enumerate(rows))
        answers = call("POST", "/v1/decisions/batch", content=lines, headers={"Content-Type": batches.NDJSON})
        statuses = [json.loads(answer).get("status", 200) for answer in answers.text.splitlines()]
        assert statuses == [200, 422, 200]
        assert kinds(service).count("refused") == 1


def test_a_batch_gives_a_line_for_every_row_in_order(site: Site) -> None:
    rows = embeddings(300)
    lines = [json.dumps(body(row, image_id=f"i{i}")) for i, row in enumerate(rows)]
    lines[7] = '{"embedding": [1.0]}'
    with running(site) as (service, call):
        send = {"content": "\n".join(lines), "headers": {"Content-Type": batches.NDJSON}}
        answers = [json.loads(line) for line in call("POST", "/v1/decisions/batch", **send).text.splitlines()]
        assert len(answers) == 300
        assert answers[7]["status"] == 422
        seqs = [answer["seq"] for answer in answers if "seq" in answer]
        assert seqs == sorted(seqs)
        single = call("POST", "/v1/decisions", json=json.loads(lines[3]))
        assert single.headers["Idempotent-Replay"] == "true"
        assert single.json() == answers[3]
        too_many = {"content": "{}\n" * 4097, "headers": {"Content-Type": batches.NDJSON}}
        assert call("POST", "/v1/decisions/batch", **too_many).status_code == 422
        assert kinds(service).count("refused") == 2
        assert call("POST", "/v1/decisions/batch", content="x").status_code == 415
        long = {"Content-Type": batches.NDJSON, "Idempotency-Key": "k" * 201}
        assert call("POST", "/v1/decisions/batch", content="{}", headers=long).status_code == 422
        assert kinds(service).count("refused") == 4
        assert service.log.verify().broken is None


def test_a_batch_takes_memory_by_its_bytes(site: Site) -> None:
    """Neither many empty lines nor a missing number may turn a body into many times its size."""
    numbers = np.ones(2_000_000, np.float32)
    ragged = pa.ListArray.from_arrays(pa.array([0, 1, 2_000_000]), pa.array(numbers, mask=numbers.cumsum() == 1))
    bodies = [b"\n" * 8_000_000, b"1\n" * 4_000_000, arrow_stream({"embedding": ragged})]
    with running(site) as (service, _):
        admission = service.admission["skin"]
        for content, read in zip(
            bodies, (batches.cases_from_ndjson, batches.cases_from_ndjson, batches.cases_from_arrow), strict=True
        ):
            tracemalloc.start()
            with contextlib.suppress(Problem):
                read(content, lambda line: admission, key="k", actor="t", most=4096)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 4 * len(content), (read.__name__, peak)


def arrow_stream(columns: Mapping[str, Any], *, compression: str | None = None) -> bytes:
    """Columns as an Arrow stream."""
    table, sink = pa.table(dict(columns)), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_an_arrow_batch_says_what_ndjson_says(site: Site) -> None:
    rows = embeddings(20)
    columns = {
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 16),
        "image_id": [f"i{i}" for i in range(20)],
        "group": [f"p{i // 2}" for i in range(19)] + [None],
    }
    with running(site) as (_, call):
        headers = {"Content-Type": batches.ARROW}
        answer = call("POST", "/v1/decisions/batch", content=arrow_stream(columns), headers=headers)
        assert answer.status_code == 200, answer.text
        decided = pa.ipc.open_stream(answer.content).read_all().to_pylist()
        again = call("POST", "/v1/decisions", json=body(rows[4], image_id="i4", group="p2")).json()
        assert {name: decided[4][name] for name in ("id", "action", "set", "seq", "hash")} == {
            name: again[name] for name in ("id", "action", "set", "seq", "hash")
        }
        assert call("POST", "/v1/decisions/batch", content=b"no", headers=headers).status_code == 422


def test_an_idle_service_holds_no_case_in_memory(site: Site) -> None:
    """A case has the patient's name in clear: it goes with the answer, not with the next request."""
    with running(site) as (_, call):
        call("POST", "/v1/decisions", json=body(embeddings(1)[0], image_id="1", group="Anna"))
        end = time.monotonic() + 5
        # Counted, not kept: what is looked at must be free to go. By type: `isinstance` wakes lazy modules up.
        while held := sum(type(thing) is Case and thing.group == "Anna" for thing in gc.get_objects()):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        assert held == 0


def test_a_bad_row_of_an_arrow_batch_gets_the_sentence_it_gets_as_ndjson(site: Site) -> None:
    """The texts of a batch are checked as columns; one that is not taken refuses its own row and no other."""
    rows = embeddings(6)
    rows[5] = 0.0
    texts: list[dict[str, Any]] = [
        {"image_id": "good"},
        {"image_id": "long", "group": "g" * 201},
        {"image_id": ""},
        {"image_id": "word", "site": "two words"},
        {"image_id": "other prompts", "prompt_digest": "0" * 64},
        {"image_id": "zero"},
    ]
    columns = {name: [text.get(name) for text in texts] for name in ("image_id", "group", "site", "prompt_digest")}
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 16)
    lines = "\n".join(json.dumps({**body(row), **text}) for row, text in zip(rows, texts, strict=True))
    with running(site) as (service, call):
        send = {"content": arrow_stream({"embedding": vectors, **columns}), "headers": {"Content-Type": batches.ARROW}}
        table = pa.ipc.open_stream(call("POST", "/v1/decisions/batch", **send).content).read_all()
        said = list(zip(table["status"].to_pylist(), table["detail"].to_pylist(), strict=True))
        answers = call("POST", "/v1/decisions/batch", content=lines, headers={"Content-Type": batches.NDJSON}).text
        told = [json.loads(answer) for answer in answers.splitlines()]
        assert said == [(answer.get("status"), answer.get("detail")) for answer in told]
        assert [status for status, _ in said] == [None, 422, 422, 422, 422, 422]
        assert len({sentence for _, sentence in said}) == 6
        assert len(stored(service, DECISION)) == 1


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"device": pa.array([1, 2])}, "device: a column of plain texts is needed."),
        ({"group": pa.array(["a", "b"]).dictionary_encode()}, "group: a column of plain texts is needed."),
        ({"study": pa.array([0, 1], type=pa.timestamp("s"))}, "study: a column of plain texts is needed."),
        ({"age": pa.array([1, 2])}, "each once and no others."),
    ],
)
def test_columns_that_are_no_texts_refuse_an_arrow_batch(
    site: Site, columns: dict[str, pa.Array], sentence: str
) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings(2).ravel()), 16)
    with running(site) as (service, call):
        content = arrow_stream({"embedding": vectors, "image_id": ["1", "2"], **columns})
        answer = call("POST", "/v1/decisions/batch", content=content, headers={"Content-Type": batches.ARROW})
        assert (answer.status_code, answer.json()["detail"].endswith(sentence)) == (422, True), answer.text
        assert kinds(service).count("refused") == 1


def test_a_compressed_arrow_batch_is_refused_before_it_is_unpacked(site: Site) -> None:
    """A body of some kilobytes would become gigabytes."""
    zeros = pa.ListArray.from_arrays(pa.array([0, 4_000_000]), pa.array(np.zeros(4_000_000, dtype=np.float32)))
    tables = [
        {"embedding": zeros, "image_id": ["1"]},
        {"embedding": zeros, "group": pa.array(["a"]).dictionary_encode()},
    ]
    with running(site) as (_, call):
        for columns, codec in itertools.product(tables, ("zstd", "lz4")):
            content = arrow_stream(columns, compression=codec)
            assert len(content) < 200_000
            answer = call("POST", "/v1/decisions/batch", content=content, headers={"Content-Type": batches.ARROW})
            assert answer.json()["detail"] == "body: the Arrow stream is compressed; send it without."


def test_damaged_arrow_batches_are_refused_and_never_followed(site: Site) -> None:
    """Any byte may be wrong: an offset that points elsewhere would otherwise end the process or show other memory."""
    lists = pa.array(embeddings(3).tolist(), type=pa.list_(pa.float32()))
    whole = arrow_stream({"embedding": lists, "image_id": ["one", "two", "three"], "group": ["a", None, "c"]})
    rng = random.Random(5)
    with running(site) as (service, _):
        admission = service.admission["skin"]

        def rows_of(content: bytes) -> list[Case | Problem]:
            try:
                return batches.cases_from_arrow(content, lambda line: admission, key="k", actor="t", most=64)
            except Problem as problem:
                return [problem]

        assert [type(row) for row in rows_of(whole)] == [Case] * 3
        far = (2_000_000_000).to_bytes(4, "little")
        places = [(place, far) for place in range(0, len(whole) - 4, 4)]
        places += [(rng.randrange(len(whole)), bytes([rng.randrange(256)])) for _ in range(3000)]
        read = [rows_of(whole[:place] + patch + whole[place + len(patch) :]) for place, patch in places]
        assert all(isinstance(row, Case | Problem) for rows in read for row in rows)
        assert sum(isinstance(rows[0], Problem) for rows in read) > 1000


def test_the_coin_is_one_per_patient_and_that_of_the_contract(site: Site) -> None:
    import hashlib
    import hmac

    key = bytes(range(32))
    first = hmac.new(key, b"patient", hashlib.sha256).digest()
    bits = int("".join(f"{byte:08b}" for byte in first)[:53], 2)
    assert SiteSecret(key).coin("patient") == bits / 2**53
    with running(site) as (service, call):
        for i, row in enumerate(embeddings(4)):
            call("POST", "/v1/decisions", json=body(row, group="same", image_id=str(i)))
        rows = stored(service, DECISION)
        assert {row.u for row in rows} == {service.secret.for_line("skin").coin("same")}


def test_deferred_cases_and_drawn_representatives_get_a_task(tmp_path: Path) -> None:
    with running(make_site(tmp_path, line_lines="sample = 0.5\nvisit_minutes = 0.0")) as (service, call):
        for i, row in enumerate(embeddings(60)):
            call("POST", "/v1/decisions", json=body(row, group=f"p{i // 2}", image_id=str(i)))
        tasks = {task.decision: task.why for task in stored(service, TASK)}
        for row in stored(service, DECISION):
            drawn = row.representative and row.u < 0.5
            expected = "deferred" if row.action == "defer" else "sample" if drawn else None
            assert tasks.get(row.id) == expected
        assert set(tasks.values()) == {"deferred", "sample"}


def test_a_patient_of_the_models_own_data_is_decided_and_marked(site: Site) -> None:
    row = embeddings(1)[0]
    with running(site) as (service, call):
        answer = call("POST", "/v1/decisions", json=body(row, group="calibration-patient-3", image_id="a"))
        other = call("POST", "/v1/decisions", json=body(row, group="new", image_id="b"))
        assert answer.status_code == 200
        assert "in_model" not in answer.json()
        assert answer.json()["set"] == other.json()["set"]
        assert [row.in_model for row in stored(service, DECISION)] == [True, False]


def test_an_explanation_agrees_with_the_decision(site: Site) -> None:
    with running(site) as (_, call):
        for i, row in enumerate(embeddings(12)):
            answer = call("POST", "/v1/decisions", json=body(row, image_id=str(i))).json()
            told = call("GET", f"/v1/decisions/{answer['id']}/explanation").json()
            assert sorted(entry["name"] for entry in told["classes"] if entry["in_set"]) == sorted(answer["set"])
            if answer["action"] != "defer":
                for entry in told["classes"]:
                    limit = np.inf if entry["threshold"] is None else entry["threshold"]
                    assert entry["in_set"] == (entry["score"] <= limit + 1e-12)
        assert call("GET", f"/v1/decisions/{'0' * 32}/explanation").status_code == 404


def write_reference(site: Site, rows: np.ndarray, names: list[str | None]) -> None:
    """Reference images that the site file names near.parquet; of rows of another length, for other prompts."""
    bank = dataclasses.replace(site.prompts, text=site.prompts.text[..., : rows.shape[1]])
    ids = [f"reference {n}" for n in range(len(rows))]
    write_features(site.folder / "near.parquet", embeddings=rows, ids=ids, label_names=names, prompts=bank)


def test_an_explanation_shows_the_nearest_reference_images_until_the_embedding_is_erased(tmp_path: Path) -> None:
    site = make_site(tmp_path, line_lines='reference = "near.parquet"')
    rows = embeddings(12)
    write_reference(site, rows, [f"c{n % 4}" for n in range(12)])
    with running(site) as (service, call):
        answer = call("POST", "/v1/decisions", json=body(rows[5], image_id="a", group="g")).json()
        told = call("GET", f"/v1/decisions/{answer['id']}/explanation").json()["neighbours"]
        assert (told[0]["id"], told[0]["label"], len(told)) == ("reference 5", "c1", 10)
        assert [entry["distance"] for entry in told] == sorted(entry["distance"] for entry in told)
        erase(service.site, service.log, group="g", decision=None, why="asked")
        again = call("GET", f"/v1/decisions/{answer['id']}/explanation")
        assert (again.status_code, again.json()["neighbours"]) == (200, [])


@pytest.mark.parametrize(
    ("width", "unlabelled", "sentence"), [(16, 3, "is empty in 3 of 12"), (8, 0, "the line skin takes 16")]
)
def test_reference_images_that_do_not_fit_are_named_before_the_start_is_recorded(
    tmp_path: Path, width: int, unlabelled: int, sentence: str
) -> None:
    site = make_site(tmp_path, line_lines='reference = "near.parquet"')
    names = [None if n < unlabelled else f"c{n % 4}" for n in range(12)]
    write_reference(site, embeddings(12)[:, :width], names)
    with pytest.raises(CalcodeError, match=sentence), Service(site.settings):
        pass
    with opened(site.settings) as log:
        assert log.head()[0] == 0


def test_a_proof_holds_for_one_decision_and_shows_no_other(site: Site) -> None:
    with running(site) as (service, call):
        answers = [
            call("POST", "/v1/decisions", json=body(row, image_id=str(i))).json() for i, row in enumerate(embeddings(9))
        ]
        path = f"/v1/decisions/{answers[4]['id']}/proof"
        assert call("GET", path).status_code == 409  # no checkpoint yet
        event = service.checkpoints.next_event()
        service.change(lambda transaction: transaction.append([event]))
        proof = call("GET", path, as_="auditor").json()
        key = checkpoint_key(service.site).public_key()
        assert "is one of the" in check_proof(Proof(**proof), key)
        text = json.dumps(proof)
        assert answers[4]["id"] in text
        assert not any(answer["id"] in text for answer in answers if answer is not answers[4])
        for forged in ({"body": proof["body"].replace("set", "sex")}, {"seq": proof["seq"] + 1}, {"path": []}):
            with pytest.raises(ValueError, match="proof"):
                check_proof(Proof(**proof | forged), key)
        # A record with another body and the hash that belongs to it, and the right record at another place.
        other = {name: proof[name] for name in ("prev", "seq", "at", "kind", "actor")}
        other["body"] = proof["body"].replace("set", "sex")
        for forged in ({**other, "hash": record_hash(**other)}, {"path": proof["path"][::-1]}):
            with pytest.raises(ValueError, match="not under the root"):
                check_proof(Proof(**proof | forged), key)
        assert open_checkpoint(proof["checkpoint"], key).size >= proof["seq"]
        with pytest.raises(ValueError, match="not signed"):
            check_proof(Proof(**proof), read_public_key(site.folder / "signer.key.pub"))


def test_a_program_is_not_told_who_was_in_the_models_data_nor_the_coin(site: Site, tmp_path: Path) -> None:
    """Neither by the explanation nor by the proof, which still proves that the record of its receipt is in the log."""
    with running(site) as (service, call):
        answer = call(
            "POST", "/v1/decisions", json=body(embeddings(1)[0], group="calibration-patient-3", image_id="a")
        ).json()
        event = service.checkpoints.next_event()
        service.change(lambda transaction: transaction.append([event]))
        path = f"/v1/decisions/{answer['id']}"
        people = {role: call("GET", f"{path}/proof", as_=role).json() for role in ("auditor", "engineer")}
        proof = call("GET", f"{path}/proof").json()
        assert json.loads(people["auditor"]["body"])["in_model"] is True
        assert people["auditor"] == people["engineer"]
        assert (proof["body"], proof["hash"]) == (None, answer["hash"])
        assert not any(word in json.dumps(proof) for word in ("in_model", "known", '"u"', "draw"))
        assert call("GET", f"{path}/explanation").json()["known_patient"] is None
        assert call("GET", f"{path}/explanation", as_="auditor").json()["known_patient"] is False
        # Who is also an administrator of accounts is a program all the same.
        wanted = {"subject": "both", "roles": ["program", "admin"]}
        both = call("POST", "/v1/tokens", as_="admin", json=wanted).json()["token"]
        assert call("GET", f"{path}/proof", as_=both).json() == proof
        key = checkpoint_key(service.site).public_key()
        said = check_proof(Proof(**proof), key)
        assert "is one of the" in said
        assert f"the hash {answer['hash']}, and not its content" in said
        assert "not its content" not in check_proof(Proof(**people["auditor"]), key)
        for forged in ({"body_sha256": "0" * 64}, {"body_sha256": None}, {"at": "2026-01-01T00:00:00Z"}):
            with pytest.raises(ValueError, match="proof"):
                check_proof(Proof(**proof | forged), key)
    file = tmp_path / "proof.json"
    file.write_text(json.dumps(proof))
    done = CliRunner().invoke(app, ["log", "check", str(file), "--key", str(site.settings.path("checkpoint.key.pub"))])
    assert done.exit_code == 0
    assert "not its content" in " ".join(done.output.split())


_WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


_PLAIN = st.floats(1e-4, 1e16, exclude_max=True)


def _decision_bodies(numbers: Any) -> Any:
    """Every shape a decision's body can have, from whatever texts and these numbers."""
    hex_ = st.text("0123456789abcdef", min_size=32, max_size=32)
    maybe = st.none() | _WORDS
    fixed = {
        **dict.fromkeys(("action", "reason", "key", "content", "model"), hex_),
        **dict.fromkeys(("device", "site", "label", "task", "visit", "group", "study"), maybe),
        **dict.fromkeys(("draw", "u", "u_second", "p_sample", "p_second"), numbers),
        **dict.fromkeys(("in_model", "known_group", "representative"), st.booleans()),
        "line": _WORDS,
        "p_audit": st.none() | numbers,
        "scores": st.lists(numbers, max_size=4),
        "set": st.lists(_WORDS, max_size=3),
        "thresholds": st.lists(st.none() | numbers, max_size=4),
        "parts": st.dictionaries(st.sampled_from(["image", "identity", "embedding"]), hex_),
    }
    rare = {"traceparent": _WORDS, "due_at": _WORDS, "deliver": st.dictionaries(_WORDS, _WORDS)}
    # Names that are not in their order.
    said = st.fixed_dictionaries({"set": st.lists(_WORDS, max_size=2), "action": hex_})
    return st.fixed_dictionaries(fixed, optional={**rare, "alarm": hex_, "model_answer": said})


@settings(max_examples=100, deadline=None)
@given(_decision_bodies(_PLAIN) | _decision_bodies(_PLAIN | st.floats(1e-9, 1e-4) | _NUMBERS), _PLAIN | _NUMBERS)
def test_a_decisions_text_is_the_canonical_json_of_its_body(body: dict[str, Any], mono: float) -> None:
    more = {"id": "i", "boot": "b", "subject": ""}
    assert body_text("decision", body, mono=mono, **more) == canonical_json({**body, "mono": mono, **more})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"u": 5e-5},
        {"draw": 3e-7},
        {"u_second": 0.0},
        {"p_audit": 2e-5},
        {"p_audit": None},
        {"scores": [0.5, 1e-6]},
        {"scores": [2e16]},
        {"scores": []},
        {"thresholds": [None, 1e17]},
        {"p_sample": 1e-6},
        {"parts": {"image": "a", "embedding": "b"}},
        {"deliver": {"pacs": "stow", "ehr": "fhir"}},
        {"model_answer": {"set": ["nv"], "action": "set"}, "alarm": "a1"},
        {"device": "Gerät-\u2028\x7f\t", "due_at": "2026-12-01", "traceparent": "00-ab-cd-01"},
    ],
)
def test_what_the_fast_encoder_would_write_otherwise_is_left_to_the_other_one(change: dict[str, Any]) -> None:
    """Exponents; the order of names, also inside, is the same in both."""
    names = ("action", "reason", "key", "content", "model", "line", "label", "task", "visit", "group", "study", "site")
    numbers = dict.fromkeys(("draw", "u", "u_second", "p_sample", "p_second", "p_audit"), 0.25)
    truths = dict.fromkeys(("in_model", "known_group", "representative"), True)
    lists = {"scores": [0.5, 1 / 3], "thresholds": [0.75, None], "set": ["nv"], "parts": {"embedding": "b"}}
    body = {**dict.fromkeys(names, "x"), **numbers, **truths, **lists, "device": None, **change}
    more = {"id": "i", "boot": "b", "subject": "", "mono": 12.5}
    assert body_text("decision", body, **more) == canonical_json({**body, **more})


def test_a_trace_that_is_none_is_not_recorded(site: Site) -> None:
    """Whatever a program puts there would stand in the log for ever."""
    with running(site) as (service, call):
        named = {"traceparent": "00-Anna Beispiel, born 1961-04-02"}
        answer = call("POST", "/v1/decisions", json=body(embeddings(1)[0], image_id="a"), headers=named)
        assert answer.status_code == 200
        assert not any("Beispiel" in record.body for page in service.log.pages() for record in page)


def test_the_fast_encoder_is_used_for_what_the_writer_records(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new field that only the slow one writes alike would cost every decision its speed, and no test more."""
    used = []
    monkeypatch.setattr(bodies, "canonical_json", lambda value: used.append(value) or canonical_json(value))
    with running(site) as (_, call):
        used.clear()
        headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        for index, row in enumerate(embeddings(20)):
            answer = call("POST", "/v1/decisions", json=body(row, image_id=str(index)), headers=headers)
            assert answer.status_code == 200
    assert not [entry for entry in used if isinstance(entry, dict) and "scores" in entry]
