"""`calcode serve --demo`: no configuration, the demonstration model, and a player that sends a cohort as a stream."""

from __future__ import annotations

import base64
import hashlib
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calcode.cohorts import Cohort, Prompts, write_prompts
from calcode.demo.cohorts import demo_features
from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.roles import FITTED_ROLES
from calcode.method.signatures import read_private_key, sign_file, write_private_key
from calcode.service.demo_pages import demo_pages
from calcode.service.demo_report import write_story
from calcode.service.demo_story import PROTOCOL, Photograph, Story
from calcode.service.labels import OUTSIDE
from calcode.service.people import make_token
from calcode.service.server import serve
from calcode.service.service import Service
from calcode.service.settings import SiteSettings, read_site


def serve_demo(*, port: int = 8470, pace: float = 8.0, say: Callable[[str], None], report: Path | None = None) -> None:
    """Serve the demonstration and play its story until Ctrl-C; its folder is deleted at the end.

    Parameters
    ----------
    port : int
    pace : float
        Photographs per second; at 8 the story takes five minutes.
    say : callable
        Receives the address to open, and a sentence for each act.
    report : Path, optional
        Folder for the story as a page with pictures; the service ends when it is written.
    """
    with tempfile.TemporaryDirectory(prefix="calcode-demo-") as name:
        say("Fitting the demonstration model (a few seconds)")
        site, stream = demo_site(Path(name), port=port)
        stopped = threading.Event()
        known = {photograph.body["study"]: photograph for photograph in stream}
        facts: dict[str, Any] = {"example": stream[0].body, "story": None, "photographs": known}

        def listening(at: int, service: Service) -> None:
            with service.log.transaction() as transaction:
                token = make_token(transaction, subject="demo", roles=["program", "auditor"], days=1, actor="demo")
            service.tokens.reload()
            story = Story(service, stream[1:], at, token, pace, say, stopped)
            facts.update(token=token, port=at, story=story)
            say(f"Open http://127.0.0.1:{at}/demo/story?every=2 to watch; /demo says what to try. Ctrl-C ends it.")
            playing = story.play if report is None else partial(write_story, story, report)
            threading.Thread(target=playing, name="story", daemon=True).start()

        try:
            serve(site, listening=listening, more=[demo_pages(facts)])
        finally:
            stopped.set()


def demo_site(folder: Path, *, port: int) -> tuple[SiteSettings, list[Photograph]]:
    """Make a site with the demonstration model, and a stream of smartphone photographs."""
    features = demo_features()
    images = features.read()
    pad = images[images.column("dataset") == "padufes20"]
    shared = [name for name in features.classes if name in set(pad.column("label_name").tolist())]
    bank = features.prompts
    chosen = [bank.classes.index(name) for name in shared]
    prompts = Prompts(text=bank.text[chosen], temperature=bank.temperature, classes=shared)
    ham = images[images.column("dataset") == "ham10000"].restrict(shared).in_space_only()
    roles = {}
    for role in FITTED_ROLES:
        part = ham.with_role(role).evidence
        roles[role] = Evidence.from_text(
            embeddings=part.embeddings,
            text=prompts.text,
            temperature=prompts.temperature,
            labels=part.labels,
            classes=prompts.classes,
            groups=part.groups,
            prompt_digest=prompts.digest,
            backbone=part.backbone,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        model = Calcode().fit(
            reference=roles["reference"],
            validation=roles["validation"],
            gate=roles["gate"],
            calibration=roles["calibration"],
        )
    model.save(folder / "model.safetensors")
    write_prompts(folder / "demo.prompts.safetensors", prompts)
    write_private_key(folder / "signer.key")
    sign_file(folder / "model.safetensors", digest=model.digest_, key=read_private_key(folder / "signer.key"))
    (folder / "protocol.toml").write_text(PROTOCOL)
    (folder / "notes").mkdir()
    # A fixed secret makes the same coins, and so the same story, every time. A real secret is random.
    (folder / "data").mkdir(mode=0o700)
    (folder / "data" / "secret.key").write_bytes(hashlib.sha256(b"demonstration").digest())
    (folder / "data" / "secret.key").chmod(0o600)
    (folder / "site.toml").write_text(
        f'name = "demo/skin"\ndata = "data"\nport = {port}\ndocs = true\n'
        '[[lines]]\nname = "skin"\nprompts = "demo.prompts.safetensors"\nmodel = "model.safetensors"\n'
        'trusted = ["signer.key.pub"]\nsigning_key = "signer.key"\n'
        'protocol = "protocol.toml"\nvisit_minutes = 0\nsample = 0.4\nsecond_reader = 0.0\n'
        # Stands in for the hospital's own viewer: only embeddings are sent.
        'viewer_url = "/demo/photographs/{study}"\n'
        'names = { akiec = "actinic keratosis", bcc = "basal cell carcinoma", bkl = "benign keratosis", '
        'mel = "melanoma", nv = "nevus" }\n'
        '[checkpoints]\nevery_records = 50\nevery_seconds = 10.0\nfolders = ["notes"]\n'
    )
    stream = [
        photograph if photograph.label in shared else photograph._replace(label=OUTSIDE)
        for photograph in photographs(pad)
    ]
    return read_site(folder / "site.toml"), stream


def photographs(cohort: Cohort) -> list[Photograph]:
    """Return the images of a cohort as requests with true labels, with the patients in a fixed random order."""
    groups, labels, ids = cohort.evidence.groups, cohort.column("label_name").tolist(), cohort.column("id").tolist()
    assert groups is not None
    facts = {
        "Age": ["" if np.isnan(age) else f"{age:g}" for age in cohort.column("age")],
        "Sex": cohort.column("sex").tolist(),
        "Part of the body": cohort.column("anatomic_site").tolist(),
    }
    patients = np.unique(groups)
    place = dict(zip(patients.tolist(), np.random.default_rng(2026).permutation(len(patients)).tolist(), strict=True))
    vectors = cohort.evidence.embeddings.astype(np.float32)
    return [
        Photograph(
            {
                "embedding_f32": base64.b64encode(vectors[row].tobytes()).decode(),
                "image_id": f"demo-{row}",
                "group": str(groups[row]),
                "study": str(ids[row]),
                "site": "pad",
                "device": "smartphone",
            },
            labels[row],
            {title: values[row] for title, values in facts.items() if values[row]},
        )
        for row in sorted(range(len(vectors)), key=lambda row: (place[str(groups[row])], row))
    ]
