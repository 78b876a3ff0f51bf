"""The whole API against its own description, by schemathesis; and the description against what is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from service.sites import embeddings, make_site, token_for
from sqlalchemy import select

from calcode.service import reviews
from calcode.service.admission import DecisionRequest
from calcode.service.app import make_app
from calcode.service.people import ROLES
from calcode.service.service import Service
from calcode.service.tables import DECISION, REVIEW, TASK, TOKEN

schemathesis = pytest.importorskip("schemathesis")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, Any, str]]:
    site = make_site(
        tmp_path_factory.mktemp("api"),
        lines="[limits]\nrate = 100000.0\nburst = 100000\nbody_bytes = 100000",
        line_lines="sample = 1.0\nvisit_minutes = 0.0",
    )
    with Service(site.settings) as service:
        token = token_for(service.log, "program")
        # Every role at once, which nobody can be given: what is checked is the description, not who may do what.
        with service.log.transaction() as transaction:
            transaction.connection.execute(TOKEN.update().values(roles=json.dumps(ROLES)))
        service.tokens.reload()
        yield service, make_app(service), token


#: Nothing in their requests can be wrong.
_WITHOUT_INPUT = [("GET", "/v1/outbox"), ("GET", "/v1/checkpoints"), ("GET", "/v1/tokens"), ("GET", "/v1/accounts")]


def _operations() -> list[tuple[str, str]]:
    return [
        ("POST", "/v1/decisions"),
        ("POST", "/v1/decisions/batch"),
        ("GET", "/v1/decisions/{id}"),
        ("GET", "/v1/decisions/{id}/explanation"),
        ("GET", "/v1/decisions/{id}/proof"),
        ("GET", "/v1/decisions/{id}/reviews"),
        ("GET", "/v1/decisions/{id}/image"),
        ("POST", "/v1/decisions/{id}/wish"),
        ("GET", "/v1/decisions/{id}/deliveries"),
        ("GET", "/v1/outbox"),
        ("GET", "/v1/tasks"),
        ("POST", "/v1/tasks/{id}/take"),
        ("POST", "/v1/tasks/{id}/review"),
        ("POST", "/v1/tasks/{id}/second"),
        ("POST", "/v1/reviews/{id}/supersede"),
        ("POST", "/v1/labels"),
        ("POST", "/v1/labels/csv"),
        ("GET", "/v1/agreement"),
        ("GET", "/v1/policy"),
        ("PUT", "/v1/policy"),
        ("GET", "/v1/models"),
        ("POST", "/v1/models"),
        ("GET", "/v1/deployments"),
        ("POST", "/v1/models/{digest}/state"),
        ("POST", "/v1/rollback"),
        ("GET", "/v1/monitors"),
        ("GET", "/v1/alarms"),
        ("POST", "/v1/alarms/{id}/close"),
        ("GET", "/v1/recalibrations"),
        ("POST", "/v1/recalibrations"),
        ("GET", "/v1/recalibrations/{digest}"),
        ("GET", "/v1/log"),
        ("GET", "/v1/checkpoints"),
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("DELETE", "/v1/tokens/{prefix}"),
        ("GET", "/v1/accounts"),
        ("PUT", "/v1/accounts/{subject}"),
        ("POST", "/v1/sessions"),
    ]


@schemathesis.serializer(
    "application/x-ndjson", "application/vnd.apache.arrow.stream", "application/octet-stream", "text/csv"
)
def _as_bytes(context: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _checks() -> list[Any]:
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    schemathesis.checks.load_all_checks()
    return [check for check in schemathesis.checks.CHECKS.get_all() if getattr(check, "__name__", "") in names]


def _known(service: Service) -> dict[str, list[str]]:
    """Ids that there are: some decisions, their tasks, one reading."""
    with service.database.reading() as connection:
        if connection.execute(select(DECISION.c.id)).first() is not None:
            tables = {"decisions": DECISION, "tasks": TASK, "reviews": REVIEW}
            return {name: list(connection.execute(select(table.c.id)).scalars()) for name, table in tables.items()}
    admission = service.admission["skin"]
    wanted = [DecisionRequest(embedding=row.tolist(), image_id=f"known-{i}") for i, row in enumerate(embeddings(8))]
    cases = [admission.case(entry, admission.vector(entry), key=None, actor="test") for entry in wanted]
    (first, *_) = service.writer.submit(cases).result()
    service.change(lambda t: reviews.take(t, first.id, reviewer="somebody"))
    spoken = {"label": "c0", "sureness": None, "comment": "", "classes": ["c0"]}
    service.change(lambda t: reviews.save(t, first.id, reviewer="somebody", **spoken))
    return _known(service)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        (*operation, mode)
        for operation in _operations()
        for mode in ("positive", "negative")
        if mode == "positive" or operation not in _WITHOUT_INPUT
    ],
)
def test_what_is_sent_and_answered_is_as_described(served: Any, method: str, path: str, mode: str) -> None:
    """Made-up requests, right and wrong: no 5xx, and every status, type and body as OpenAPI says."""
    service, app, token = served
    _, _, kind, *_ = path.split("/")
    known = _known(service).get(kind, [])
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[path][method]
    has_input = operation.body or operation.path_parameters or operation.query
    assert bool(has_input) == ((method, path) not in _WITHOUT_INPUT)
    checks = _checks()
    assert len(checks) == 4

    @settings(max_examples=12, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def once(case: Any) -> None:
        if known and mode == "positive" and "id" in case.path_parameters:
            # One that exists, every time; made-up ones meet nothing but 404.
            case.path_parameters["id"] = known[int(case.path_parameters["id"], 16) % len(known)]
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, checks=checks)

    once()


def test_the_examples_of_the_description_are_taken(served: Any, tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    service, app, token = served
    spec = app.openapi()
    operations = {(m.upper(), p) for p, ops in spec["paths"].items() for m in ops}
    assert operations - {("GET", "/health/live"), ("GET", "/health/ready"), ("GET", "/metrics")} == set(_operations())
    schema = spec["paths"]["/v1/decisions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    example = {**schema["examples"][0], "embedding": embeddings(1)[0].tolist()}
    with TestClient(app) as client:
        answer = client.post("/v1/decisions", json=example, headers={"Authorization": f"Bearer {token}"})
        schemas = spec["components"]["schemas"]
        policy = {name: entry["examples"][0] for name, entry in schemas["PolicyRequest"]["properties"].items()}
        send = {"headers": {"Authorization": f"Bearer {token}"}}
        assert client.put("/v1/policy", json=policy, **send).json() == {k: v for k, v in policy.items() if k != "why"}
        label = schemas["LabelRequest"]["examples"][0]
        about = {**example, "image_id": "by study", "study": label["study"]}
        assert client.post("/v1/decisions", json=about, **send).status_code == 200
        assert len(client.post("/v1/labels", json={**label, "label": "c0"}, **send).json()) == 1
        taken = spec["paths"]["/v1/labels/csv"]["post"]["requestBody"]["content"]["text/csv"]["example"]
        sheet = client.post("/v1/labels/csv", content=taken.replace("mel", "c0"), **send)
        assert [row["id"] for row in sheet.json()], sheet.text
    assert answer.status_code == 200
    assert "not a medical device" in spec["info"]["description"]
    assert service.ready()


def _examples(content: dict[str, Any], schemas: dict[str, Any]) -> list[Any]:
    """The examples of a JSON content: its own, or those of the schema that it names."""
    if "example" in content:
        return [content["example"]]
    schema = content["schema"]
    if schema.get("type") == "array":
        return [[found] for found in _examples({"schema": schema["items"]}, schemas)]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return list(schema.get("examples", ()))


def test_every_request_and_answer_has_an_example_that_fits_its_schema(served: tuple[Service, Any, str]) -> None:
    from jsonschema import Draft202012Validator

    described = served[1].openapi()
    schemas = described["components"]["schemas"]
    checked = 0
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            contents = {"request": operation.get("requestBody", {}).get("content", {})}
            contents["answer"] = operation["responses"].get("200", {}).get("content", {})
            for what, by_type in contents.items():
                # Files, and the page of /metrics, which has no schema.
                content = by_type.get("application/json")
                if content is None or not content.get("schema"):
                    continue
                examples = _examples(content, schemas)
                assert examples, f"{method} {path}: no example of its {what}"
                validator = Draft202012Validator({**content["schema"], "components": described["components"]})
                for example in examples:
                    validator.validate(example)
                    checked += 1
    assert checked > 40
