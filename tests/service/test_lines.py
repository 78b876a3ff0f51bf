"""Several lines on one service: each with its own model, coin, policy and protocol, and people limited to some."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from service.clinic import Clinic
from service.sites import Site, another_model, embeddings, make_site, running, token_for, wait_until
from service.visitors import Person
from sqlalchemy import select, text

from calcode.errors import ArtifactError, ServiceError
from calcode.service import projections, schema
from calcode.service.admission import Case, DecisionRequest
from calcode.service.alarms import open_alarms
from calcode.service.database import Database
from calcode.service.doctor import examine
from calcode.service.operations import derived_rows, erase
from calcode.service.people import make_token
from calcode.service.sampling import policy_event
from calcode.service.service import Service
from calcode.service.settings import read_site
from calcode.service.tables import DECISION, DEPLOYMENT, MODEL, POLICY, PROTOCOL
from calcode.service.writer import Answer

PROTOCOL_TEXT = 'description = "{}"\nmin_shadow_decisions = 0\n'


@pytest.fixture
def three(tmp_path: Path) -> Site:
    """North and south begin with the same model file, west with another one."""
    site = make_site(tmp_path)
    another_model(site, "west.safetensors")
    tables = []
    for name, model, sample in (("north", "model", 0.5), ("south", "model", 0.1), ("west", "west", 0.1)):
        (tmp_path / f"{name}.toml").write_text(PROTOCOL_TEXT.format(name))
        tables.append(
            f'[[lines]]\nname = "{name}"\nprompts = "skin.prompts.safetensors"\nmodel = "{model}.safetensors"\n'
            f'trusted = ["signer.key.pub"]\nsample = {sample}\nprotocol = "{name}.toml"\n'
        )
    site.file.write_text('name = "hospital/skin"\ndata = "data"\nport = 0\ndocs = true\n' + "".join(tables))
    return site


def _body(row: int, **more: Any) -> dict[str, Any]:
    return {"embedding": embeddings(30)[row].tolist(), "group": "patient-1", "image_id": f"image-{row}", **more}


def _cases(service: Service, lines: list[str]) -> list[Case]:
    made = []
    for row, line in enumerate(lines):
        admission = service.admission[line]
        request = DecisionRequest(embedding_f32=b"", group=f"patient-{row % 7}", image_id=f"image-{row}")
        made.append(admission.case(request, embeddings(30)[row], key=None, actor="test"))
    return made


def test_two_lines_of_one_name_are_a_mistake_of_the_site_file(three: Site) -> None:
    three.file.write_text(three.file.read_text().replace('"west"', '"north"'))
    with pytest.raises(ServiceError, match="same name"):
        read_site(three.file)


def test_a_request_names_its_line_where_there_are_several(three: Site) -> None:
    with running(three) as (_, call):
        assert call("POST", "/v1/decisions", json=_body(0)).status_code == 422
        assert call("POST", "/v1/decisions", json=_body(0, line="east")).status_code == 422
        north = call("POST", "/v1/decisions", json=_body(0, line="north")).json()
        south = call("POST", "/v1/decisions", json=_body(0, line="south")).json()
    # The same image on another line is another case: no stored answer of a neighbour comes back.
    assert (north["line"], south["line"]) == ("north", "south")
    assert north["id"] != south["id"]
    assert north["model"] == south["model"]


def _served(site: Site, *names: str) -> Site:
    """The site file with these of its lines and no others."""
    head, *tables = site.file.read_text().split("[[lines]]")
    file = site.folder / "changed.toml"
    file.write_text(head + "".join(f"[[lines]]{table}" for table in tables if any(f'"{n}"' in table for n in names)))
    return dataclasses.replace(site, file=file)


def test_a_line_with_a_new_name_is_refused_because_its_coins_would_be_tossed_again(site: Site) -> None:
    with running(site) as (service, _):
        before = _cases(service, ["skin"])[0].coin
    site.file.write_text(site.file.read_text().replace('name = "skin"', 'name = "derm"'))
    with pytest.raises(ServiceError, match="put the old name back"), Service(site.settings):
        pass
    (finding,) = [entry for entry in examine(site.settings) if entry.about == "coins"]
    assert finding.level == "bad"
    assert "derm, and no longer skin" in finding.sentence
    site.file.write_text(site.file.read_text().replace('name = "derm"', 'name = "skin"'))
    with running(site) as (service, _):
        assert _cases(service, ["skin"])[0].coin == before


def test_one_line_ends_and_another_begins_in_two_starts_and_not_in_one(three: Site) -> None:
    with Service(_served(three, "north", "south").settings):
        pass
    with pytest.raises(ServiceError, match="start once with both"), Service(_served(three, "north", "west").settings):
        pass
    with Service(three.settings):
        pass
    with Service(_served(three, "north", "west").settings):
        pass


def test_a_line_that_is_taken_out_and_put_back_has_the_same_coins_keys_and_model(three: Site) -> None:
    with running(three) as (service, call):
        first = call("POST", "/v1/decisions", json=_body(0, line="north")).json()
        coin, group = (getattr(_cases(service, ["north"])[0], name) for name in ("coin", "group_digest"))
    with running(_served(three, "south", "west")) as (_, call):
        assert call("POST", "/v1/decisions", json=_body(0, line="north")).status_code == 422
    with running(three) as (service, call):
        again = call("POST", "/v1/decisions", json=_body(0, line="north"))
        assert again.headers["Idempotent-Replay"] == "true"
        assert again.json()["id"] == first["id"]
        case = _cases(service, ["north"])[0]
        assert (case.coin, case.group_digest) == (coin, group)
        with service.database.reading() as connection:
            deployed = connection.execute(select(DEPLOYMENT).where(DEPLOYMENT.c.line == "north")).all()
        assert len(deployed) == 1, "the model that answered before answers again, without a new deployment"


def test_a_line_that_is_added_later_tosses_its_own_coins_from_then_on(three: Site) -> None:
    with running(_served(three, "north")) as (service, _):
        before = _cases(service, ["north"])[0].coin
    with running(three) as (service, _):
        north, south = _cases(service, ["north"])[0], _cases(service, ["south"])[0]
        assert north.coin == before
        assert south.coin == service.secret.for_line("south").coin("patient-0")
        assert south.coin != before


def test_a_log_of_the_time_before_lines_had_keys_is_not_served(three: Site) -> None:
    with running(three) as (service, call):
        call("POST", "/v1/decisions", json=_body(0, line="north"))
        with service.database.writing() as connection:
            connection.execute(DECISION.update().values(key="0" * 64))
    with pytest.raises(ServiceError, match="begin a new log"), Service(three.settings):
        pass


def test_every_line_has_its_own_coin_and_pseudonyms(three: Site) -> None:
    with running(three) as (service, _):
        north, south, again = (_cases(service, [line])[0] for line in ("north", "south", "north"))
    assert north.coin == again.coin
    assert north.group_digest == again.group_digest
    assert len({north.coin, south.coin}) == 2
    assert len({north.group_digest, south.group_digest, north.key, south.key}) == 4


def test_a_mixed_block_is_decided_by_each_line_and_recorded_in_order(three: Site) -> None:
    lines = [("north", "south", "west")[row * row % 3] for row in range(30)]
    with running(three) as (service, _):
        cases = _cases(service, lines)
        answers = service.writer.submit(cases).result()
        assert all(isinstance(answer, Answer) for answer in answers)
        seqs = [answer.record.seq for answer in answers]
        with service.database.reading() as connection:
            rows = {row.seq: row for row in connection.execute(select(DECISION))}
        champions = {line: service.models[line].champion for line in set(lines)}
        for case, seq in zip(cases, seqs, strict=True):
            champion = champions[case.line]
            (alone,) = champion.answers(case.embedding[None], groups=[case.group], group_digests=[case.group_digest])
            assert (rows[seq].line, rows[seq].model) == (case.line, champion.digest)
            assert (rows[seq].action, rows[seq].reason) == (alone["action"], alone["reason"])
            assert rows[seq].p_sample == (0.5 if case.line == "north" else 0.1)
    assert seqs == list(range(seqs[0], seqs[0] + 30))


def test_one_line_changes_its_model_and_the_others_keep_theirs(three: Site) -> None:
    with running(three) as (service, call):
        candidate = (three.folder / "west.safetensors").read_bytes()
        signature = (three.folder / "west.safetensors.sig").read_text().strip().replace("\n", ";")
        headers = {"Calcode-Signature": signature}
        path = "/v1/models"
        assert call("POST", path, as_="engineer", content=candidate, headers=headers).status_code == 422
        digest = call("POST", f"{path}?line=north", as_="engineer", content=candidate, headers=headers).json()["digest"]
        step = f"{path}/{digest}/state?line=north"
        assert call("POST", step, as_="engineer", json={"state": "shadow", "why": "try it"}).status_code == 200
        # The model is west's champion already: its state there is not touched.
        states = {(row["line"], row["state"]) for row in call("GET", path, as_="auditor").json()}
        assert states == {("north", "champion"), ("north", "shadow"), ("south", "champion"), ("west", "champion")}
        mixed = service.writer.submit(_cases(service, ["north", "south", "north"])).result()
        assert all(isinstance(answer, Answer) for answer in mixed)
        service.change(lambda transaction: None)  # the shadow wrote before this
        with service.database.reading() as connection:
            assert (
                not service.models["south"]
                .gates(connection, service.models["south"].champion.digest)[0]
                .startswith("2")
            )
            assert connection.execute(text("SELECT count(*) FROM shadow_decision")).scalar() == 2
        newest = call("GET", "/v1/deployments?at_seq=1000000", as_="auditor").json()
        assert {(row["line"], row["shadow"]) for row in newest} == {("north", digest), ("south", None), ("west", None)}


def test_a_token_of_one_line_asks_for_that_line_alone(three: Site) -> None:
    with running(three) as (service, call):
        with service.log.transaction() as transaction:
            own = make_token(
                transaction, subject="gate", roles=["program", "auditor"], days=1, actor="test", lines=["south"]
            )
        service.tokens.reload()
        made = call("POST", "/v1/decisions", as_=own, json=_body(1))
        assert made.json()["line"] == "south"
        assert call("POST", "/v1/decisions", as_=own, json=_body(2, line="north")).status_code == 403
        mine = made.json()["id"]
        other = call("POST", "/v1/decisions", json=_body(3, line="north", study="s")).json()["id"]
        assert call("GET", f"/v1/decisions/{other}", as_=own).status_code == 404
        assert call("GET", f"/v1/decisions/{mine}", as_=own).status_code == 200
        for wrong in ({"decision": other}, {"study": "s", "line": "north"}, {"decision": mine, "line": "north"}):
            assert call("POST", "/v1/labels", as_=own, json={"label": "c0", **wrong}).status_code == 422
        assert call("POST", "/v1/labels", as_=own, json={"label": "c0", "decision": mine}).status_code == 200
        assert call("GET", "/v1/log", as_=own).status_code == 403
        assert {row["line"] for row in call("GET", "/v1/models", as_=own).json()} == {"south"}
        assert call("GET", "/v1/models?line=west", as_=own).status_code == 403


def test_an_account_limited_to_lines_signs_in_with_that_limit(three: Site) -> None:
    wanted = {"roles": ["engineer"], "password": "a long pass phrase", "lines": ["north"]}
    with running(three) as (_, call):
        assert call("PUT", "/v1/accounts/e.meier", as_="admin", json=wanted).status_code == 204
        (facts,) = call("GET", "/v1/accounts", as_="admin").json()
        assert facts["lines"] == ["north"]
        login = {"subject": "e.meier", "password": wanted["password"]}
        token = call("POST", "/v1/sessions", as_=None, json=login).json()["token"]
        assert {row["line"] for row in call("GET", "/v1/models", as_=token).json()} == {"north"}
        assert call("POST", "/v1/rollback?line=south", as_=token, json={"why": "a try"}).status_code == 403
        # The reports of all lines wait together.
        assert call("GET", "/v1/outbox", as_=token).status_code == 403
        assert call("GET", "/v1/outbox", as_="engineer").status_code == 200


def test_the_last_use_of_a_token_is_shown(site: Site) -> None:
    with running(site) as (service, call):
        shown = {row["subject"]: row["last_used"] for row in call("GET", "/v1/tokens", as_="admin").json()}
        assert shown["test-auditor"] is None
        call("GET", "/v1/log", as_="auditor")
        service.change(service.tokens.write_use)
        shown = {row["subject"]: row["last_used"] for row in call("GET", "/v1/tokens", as_="admin").json()}
    assert shown["test-auditor"] is not None
    assert shown["test-clinician"] is None


def test_a_policy_counts_from_the_next_block_and_a_restart_leaves_it(three: Site) -> None:
    with running(three) as (service, _):
        before = service.writer.submit(_cases(service, ["south"])).result()[0]
        wanted = service.models["south"].in_force.policy._replace(sample=1.0)
        policy = policy_event("south", wanted, actor="e.meier", why="more labels")
        service.change(lambda transaction: transaction.append([policy]))
        after = service.writer.submit(_cases(service, ["south"] * 2)[1:]).result()[0]
        with service.database.reading() as connection:
            rows = {row.id: row.p_sample for row in connection.execute(select(DECISION))}
    assert (rows[before.id], rows[after.id]) == (0.1, 1.0)
    with running(three) as (service, _):
        assert service.models["south"].in_force.policy.sample == 1.0
        assert service.models["west"].in_force.policy.sample == 0.1
    three.file.write_text(three.file.read_text().replace("sample = 0.1", "sample = 0.2"))
    with running(three) as (service, _):
        assert service.models["south"].in_force.policy.sample == 0.2


def test_erasing_a_patient_reaches_every_line_also_one_that_is_no_longer_served(three: Site) -> None:
    with running(three) as (service, call):
        for row, line in enumerate(("north", "south", "west")):
            assert call("POST", "/v1/decisions", json=_body(row, line=line)).status_code == 200
        tables = three.file.read_text().split("[[lines]]")
        three.file.write_text("[[lines]]".join(tables[:-1]))
        assert [line.name for line in three.settings.lines] == ["north", "south"]
        assert erase(three.settings, service.log, group="patient-1", decision=None, why="asked") == 6


def test_lines_rebuilt_from_the_log_equal_the_live_ones(three: Site) -> None:
    with running(three) as (service, _):
        token_for(service.log, "program")
        service.writer.submit(_cases(service, ["north", "west"] * 5)).result()
        before = derived_rows(service.database)
        with service.log.transaction() as transaction:
            projections.rebuild(transaction.connection)
        assert derived_rows(service.database) == before
        assert len(before["protocol"]) == len(before["policy"]) == len(before["model"]) == 3


def test_a_log_of_one_line_upgrades_with_its_rows(database_url: str | None, tmp_path: Path) -> None:
    database = Database(database_url or f"sqlite:///{tmp_path / 'old.sqlite'}")
    schema.upgrade(database, to="0001")
    model = "'d', 'skin', 'home', 'champion', 'service', 'd.safetensors', '[]', 'g', ''"
    with database.writing() as connection:
        connection.execute(text(f"INSERT INTO model VALUES ({model})"))
        connection.execute(text("INSERT INTO protocol VALUES (3, 'p', 'text', 'service')"))
        connection.execute(text("INSERT INTO policy VALUES (2, 'skin', 0.1, 'service')"))
        connection.execute(text("INSERT INTO account VALUES ('e.meier', '[]', 'local', 'admin')"))
    schema.upgrade(database)
    with database.reading() as connection:
        row = connection.execute(select(MODEL)).one()
        assert (row.line, row.digest, row.file) == ("skin", "d", "d.safetensors")
        assert connection.execute(select(PROTOCOL.c.line)).scalar() == ""
        assert connection.execute(select(POLICY.c.line)).scalar() == "skin"
        assert connection.execute(text("SELECT lines FROM account")).scalar() is None
    database.close()


def test_threads_that_look_at_images_at_the_same_time_do_not_warn_of_each_others_rows(three: Site) -> None:
    """The writer, the monitors and a recalibration all make evidence."""
    warnings.simplefilter("error")
    usual = sys.getswitchinterval()
    with running(three) as (service, _), ThreadPoolExecutor(8) as pool:
        champion, rows = service.models["north"].champion, 3.0 * embeddings(2)
        sys.setswitchinterval(1e-6)
        try:
            made = list(pool.map(lambda _: champion.evidence(rows), range(6000)))
        finally:
            sys.setswitchinterval(usual)
    assert all(len(evidence) == 2 for evidence in made)


def test_an_unforeseen_fault_of_a_monitor_ends_neither_checkpoints_nor_visits(
    three: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(change: object) -> None:
        raise ZeroDivisionError

    with running(three) as (service, _):
        monkeypatch.setattr(service.monitors["north"], "step", fails)
        wait_until(lambda: "ZeroDivisionError" in service.monitor_faults.get("north", ""))
        monkeypatch.setattr(service.tokens, "reload", lambda: 1 / 0)
        time.sleep(1.5)
        monkeypatch.undo()
        wait_until(lambda: service.monitor_faults == {})


def test_monitors_that_fail_on_one_line_are_named_and_stop_no_other_line(
    three: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    three.file.write_text(three.file.read_text().replace("trusted", "visit_minutes = 0\ntrusted"))
    with running(three) as (service, call):
        sentence = "The monitors of the line north do not run (ArtifactError)."

        def gone(digest: str) -> None:
            raise ArtifactError(f"{digest}: the file is gone")

        with monkeypatch.context() as patched:
            patched.setattr(service.models["north"], "model", gone)
            Clinic(service, line="north").send(1)
            Clinic(service, line="south", shift=1.8).send(80)
            for _ in range(3):
                service.watch()
            with service.database.reading() as connection:
                assert [alarm["monitor"] for alarm in open_alarms(connection, "south")] == ["M1"]
            wait_until(lambda: service.monitor_faults == {"north": sentence})
            health = call("GET", "/health/ready", as_=None)
            assert (health.status_code, health.json()["detail"]) == (200, f"Ready. {sentence}")
            auditor = Person(service, "a.berg", "auditor")
            assert all(sentence in auditor.get(page).text for page in ("/", "/monitor?line=north"))
            assert sentence not in auditor.get("/monitor?line=south").text
            told = [record for record in caplog.records if record.msg == "monitors_failed"]
            assert [(record.line, record.error) for record in told] == [("north", "ArtifactError")]
        service.watch()
        wait_until(lambda: service.monitor_faults == {})
        assert call("GET", "/health/ready", as_=None).json()["detail"] == "Ready."
        assert service.monitors["north"].states()[0].watch.facts["answers"]["n"] == 1
