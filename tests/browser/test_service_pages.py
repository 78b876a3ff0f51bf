"""The pages of the service in a real browser: axe-core, keys, no scripts, phone and print."""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser.opened import overflowing, unavailable

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

import uvicorn
from service.sites import another_model, embeddings, make_site
from service.visitors import session
from sqlalchemy import select

from calcode.service import people
from calcode.service.admission import DecisionRequest
from calcode.service.app import make_app
from calcode.service.audit.parts import secret_part
from calcode.service.pages import COOKIE
from calcode.service.service import Service
from calcode.service.tables import DECISION, REVIEW, SECRET_PART, TASK

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# The service outlives a test, and keeps the filter that it set when it loaded its model; pytest takes it back.
pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore:.* rows are not of unit length")]
EVERYTHING = ("clinician", "approver", "engineer", "auditor", "admin")
PASSWORD = "correct horse battery"
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@dataclass(frozen=True)
class Served:
    """A running service with cases that wait."""

    service: Service
    address: str

    def rows(self, query: Any) -> list[Any]:
        with self.service.database.reading() as connection:
            return list(connection.execute(query).all())

    def free_tasks(self) -> list[Any]:
        """Cases that nobody has read or has open; another test may have taken some."""
        return self.rows(select(TASK).where(TASK.c.state == "open", TASK.c.lease_by.is_(None), TASK.c.why == "sample"))

    def person(self, browser: Browser, subject: str, *roles: str, **options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.set_default_timeout(120_000)
        token = session(self.service, subject, *(roles or EVERYTHING))
        context.add_cookies([{"name": COOKIE, "value": token, "url": self.address}])
        return context


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "notes").mkdir()
    (folder / "protocol.toml").write_text(
        'description = "A candidate that ran in the shadow."\nmin_shadow_decisions = 5\n'
    )
    site = make_site(
        folder,
        lines='[checkpoints]\nevery_records = 5\nfolders = ["notes"]\n',
        line_lines='visit_minutes = 0\nsample = 1.0\nsecond_reader = 0.0\nprotocol = "protocol.toml"\n',
    )
    with Service(site.settings) as service:
        digest, add = service.models["skin"].add(another_model(site, "other.safetensors"), actor="e.meier")
        service.change(add)
        models = service.models["skin"]
        service.change(lambda t: models.set_shadow(t, digest, actor="e.meier", why="first comparison"))
        models.follow()
        cases = []
        for i, vector in enumerate(embeddings(24)):
            wanted = DecisionRequest(
                embedding=vector.tolist(), group=f"patient-{i}", image_id=f"{EVIL}{i}", site="ward-3"
            )
            cases.append(service.admission["skin"].case(wanted, vector, key=f"k{i}", actor="pacs"))
        service.writer.submit(cases).result()
        server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_config=None))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(service, f"http://127.0.0.1:{port}")
        server.should_exit = True
        thread.join()


def add_picture(service: Service, decision: str) -> None:
    """A picture for a case, as a tower would have kept it."""
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)).save(sink, "JPEG")
    name = hashlib.sha256(sink.getvalue()).hexdigest()
    folder = service.site.path("images")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(sink.getvalue())
    part = secret_part("image", name.encode(), media_type="text/x-file")

    def change(transaction: Any) -> None:
        seq = transaction.connection.execute(select(DECISION.c.seq).where(DECISION.c.id == decision)).scalar()
        row = {"seq": seq, **part._asdict()}
        known = SECRET_PART.c.keys()
        transaction.connection.execute(SECRET_PART.insert().values(**{key: row[key] for key in known}))

    service.change(change)


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page, and everything it complained about or tried to open."""
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
    return page, complaints


#: Rules whose verdict depends on colours and sizes; the others are asked once for a window.
LOOKS = ("color-contrast", "target-size")


def violations(page: Page, *, only: tuple[str, ...] = ()) -> list[str]:
    """Everything that axe-core finds, the rules of WCAG 2.2 AA that it leaves out by default included."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        unavailable("axe-core is not installed: pip install axe-playwright-python")
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
    if only:
        options["runOnly"] = {"type": "rule", "values": list(only)}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{entry['id']}: {node['html'][:200]}" for entry in found for node in entry["nodes"]]


def test_no_page_has_an_axe_violation_or_reaches_beyond_its_window(browser: Browser, served: Served) -> None:
    """Light and dark, desk and phone, every fold open."""
    first, read, *_ = served.free_tasks()
    candidate = served.service.models["skin"].in_force.shadow.digest
    add_picture(served.service, first.decision)
    context = served.person(browser, "a.berg")
    page, complaints = watched(context)
    page.goto(f"{served.address}/review/{read.id}")
    page.check("input[value=c1]")
    with page.expect_navigation():
        page.click("text=Save and see")
    addresses = [
        "/",
        "/review",
        f"/review/{first.id}",
        f"/review/{read.id}/answer",
        f"/cases/{read.decision}",
        f"/cases/{first.decision}",
        "/monitor",
        "/models",
        f"/models/{candidate}",
        "/outbox",
        "/people",
        "/sign-in",
        "/log?kind=checkpoint",
    ]
    for address in addresses:
        if address.startswith("/log"):
            # The log has the answers: who reads cases blind does not see it.
            assert complaints == []
            context.close()
            context = served.person(browser, "a.dahl", "auditor")
            page, complaints = watched(context)
        page.goto(served.address + address)
        page.evaluate("document.querySelectorAll('details').forEach(entry => { entry.open = true })")
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 900})
            assert overflowing(page) == [], (address, width)
            page.emulate_media(color_scheme="light")
            assert violations(page) == [], (address, width)
            page.emulate_media(color_scheme="dark")
            assert violations(page, only=LOOKS) == [], (address, width, "dark")
    assert complaints == []
    context.close()


def test_labels_and_controls_of_a_search_stand_in_line(browser: Browser, served: Served) -> None:
    context = served.person(browser, "a.dahl", "auditor", viewport={"width": 1280, "height": 900})
    page, _ = watched(context)
    page.goto(f"{served.address}/log")
    for shape in ("top", "height"):
        found = page.evaluate(
            """shape => [".field", ".field :is(select, input)"].map(which =>
                [...document.querySelectorAll("form[role=search] " + which)]
                    .map(entry => entry.getBoundingClientRect()[shape]))""",
            shape,
        )
        for places in found:
            assert len(places) == 2
            assert places[0] == pytest.approx(places[1], abs=0.5), shape
    context.close()


def test_sign_in_then_a_case_in_three_keys_change_and_next(browser: Browser, served: Served) -> None:
    session(served.service, "anna", "clinician")
    served.service.change(lambda t: people.set_password(t, subject="anna", password=PASSWORD))
    context = browser.new_context()
    context.set_default_timeout(120_000)
    page, complaints = watched(context)
    page.goto(f"{served.address}/review")
    assert "/sign-in" in page.url
    page.keyboard.press("Tab")
    page.fill("input[name=subject]", "anna")
    page.fill("input[name=password]", PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url("**/review")
    # A key counts once the page has loaded, its script included; a text can be seen before that.
    with page.expect_navigation():
        page.keyboard.press("s")
    for wanted in ("c0", "cannot_tell"):
        task = page.url.split("/review/")[1].split("?")[0]
        with page.expect_navigation():
            page.keyboard.press("1" if wanted == "c0" else "x")
            page.keyboard.press("Enter")
        assert page.locator(".card").first.inner_text().startswith("You said")
        saved = served.rows(select(REVIEW).where(REVIEW.c.task == task))
        assert [(entry.label, entry.blind, entry.reviewer) for entry in saved] == [(wanted, True, "anna")]
        if wanted == "c0":
            # What is folded away takes no key.
            page.keyboard.press("4")
            page.keyboard.press("e")
            assert page.locator("input[value=c0]").is_checked()
            page.keyboard.press("3")
            with page.expect_navigation():
                page.keyboard.press("Enter")
            changed = served.rows(select(REVIEW).where(REVIEW.c.task == task).order_by(REVIEW.c.seq))
            assert [(entry.label, entry.blind) for entry in changed] == [("c0", True), ("c2", False)]
        with page.expect_navigation():
            page.keyboard.press("n")
        assert page.locator("h1").inner_text() == "What do you see?"
    assert complaints == []
    context.close()


def test_a_key_in_a_comment_is_a_letter_and_keys_can_be_turned_off(browser: Browser, served: Served) -> None:
    context = served.person(browser, "ben", "clinician")
    page, _ = watched(context)
    page.goto(f"{served.address}/review/next")
    page.keyboard.press("c")
    page.keyboard.type("1 x q")
    assert page.input_value("input[name=comment]") == "1 x q"
    assert page.locator("input[name=label]:checked").count() == 0
    assert page.locator("kbd").count() > 5
    with page.expect_navigation():
        page.click("text=Turn them off")
    assert page.locator("text=Turn them on").is_visible()
    page.keyboard.press("1")
    assert page.locator("input[name=label]:checked").count() == 0
    assert page.locator("kbd").count() == 0
    context.close()


def test_a_key_counts_as_soon_as_its_choice_is_on_the_page(browser: Browser, served: Served) -> None:
    context = served.person(browser, "finn", "clinician")
    # The script of the keys takes a detour, and the key is pressed the moment the page has the choice.
    context.route("**/keys.js*", lambda route: route.continue_())
    page = context.new_page()
    page.add_init_script(
        """new MutationObserver((_, observer) => {
          if (!document.querySelector('[data-key="2"]')) return;
          observer.disconnect();
          document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "2", bubbles: true}));
        }).observe(document, {childList: true, subtree: true});"""
    )
    page.goto(f"{served.address}/review/next")
    assert page.locator('[data-key="2"]').is_checked()
    context.close()


def test_the_whole_path_works_without_scripts_by_the_keyboard_alone(browser: Browser, served: Served) -> None:
    context = served.person(browser, "cleo", "clinician", java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served.address}/review")
    with page.expect_navigation():
        page.locator("text=Start reading").press("Enter")
    assert page.locator("h1").inner_text() == "What do you see?"
    page.locator("input[name=label]").first.focus()
    page.keyboard.press("ArrowDown")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.locator(".card").first.inner_text().startswith("You said")
    page.locator("summary", has_text="Result for each diagnosis").press("Enter")
    assert page.locator("text=Best fit first").is_visible()
    with page.expect_navigation():
        page.locator("text=Next case").press("Enter")
    assert page.locator("h1").inner_text() == "What do you see?"
    assert served.rows(select(REVIEW.c.label).where(REVIEW.c.reviewer == "cleo")) == [("c1",)]
    context.close()


def test_the_picture_is_enlarged_without_a_script_and_hostile_text_never_runs(browser: Browser, served: Served) -> None:
    row = served.free_tasks()[-1]
    add_picture(served.service, row.decision)
    context = served.person(browser, "dora", "clinician", viewport={"width": 1200, "height": 900})
    page, complaints = watched(context)
    page.goto(f"{served.address}/review/{row.id}")
    assert page.locator("dd", has_text=EVIL).count() == 1
    before = page.locator(".frame img").bounding_box()
    page.keyboard.press("z")
    after = page.locator(".frame img").bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] == pytest.approx(3 * before["width"], rel=0.1)
    # The lesion, not a corner.
    frame = page.locator(".frame").bounding_box()
    assert frame is not None
    for start, length in (("x", "width"), ("y", "height")):
        assert after[start] + after[length] / 2 == pytest.approx(frame[start] + frame[length] / 2, abs=20)
    assert overflowing(page) == []
    page.check("input[value=c0]")
    page.fill("input[name=comment]", EVIL)
    with page.expect_navigation():
        page.click("text=Save and see")
    assert page.locator(".card", has_text=EVIL).count() == 1
    assert complaints == []
    context.close()


def test_models_are_moved_by_two_people_and_nobody_else(browser: Browser, served: Served) -> None:
    def step(subject: str, role: str, title: str, button: str) -> str:
        context = served.person(browser, subject, role)
        page = context.new_page()
        page.goto(f"{served.address}/models")
        entry = page.locator("details.step", has_text=title).first
        if entry.count() == 0:
            context.close()
            return "no such button"
        entry.locator("summary").click()
        entry.locator("input[name=why]").fill("seen on the ward")
        with page.expect_navigation():
            entry.locator(f"button:has-text('{button}')").click()
        text = page.locator("main").inner_text()
        context.close()
        return text

    assert step("frieda", "auditor", "Propose", "Propose it") == "no such button"
    assert step("gus", "approver", "Approve", "Approve and let") == "no such button"
    assert "is proposed" in step("hans", "engineer", "Propose", "Propose it")
    # The protocol asks for a restore test, which nobody has made.
    assert "No restore test" in step("gus", "approver", "Approve", "Approve and let")


def test_a_page_on_paper_has_no_forms_and_shows_what_it_says(browser: Browser, served: Served) -> None:
    (row,) = served.rows(select(DECISION).order_by(DECISION.c.seq).limit(1))
    context = served.person(browser, "olga", "auditor")
    page = context.new_page()
    page.goto(f"{served.address}/cases/{row.id}")
    page.emulate_media(media="print")
    assert not page.locator(".bar").is_visible()
    assert page.locator("text=In the log").is_visible()
    # What is folded on the screen stands on the paper, with its heading.
    assert page.locator("summary", has_text="What the model promises").is_visible()
    assert page.locator("table[aria-label='Scores and limits']").is_visible()
    assert page.locator("text=not a medical device").is_visible()
    context.close()
