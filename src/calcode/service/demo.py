"""`calcode serve --demo`: no configuration, the demonstration model, and a player that sends a cohort as a stream."""

from __future__ import annotations

import base64
import http.client
import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from calcode.cohorts import Cohort, Prompts, write_prompts
from calcode.demo.cohorts import demo_features
from calcode.errors import CalcodeWarning
from calcode.method.evidence import Evidence
from calcode.method.model import Calcode
from calcode.method.signatures import read_private_key, sign_file, write_private_key
from calcode.service.demo_pages import demo_pages
from calcode.service.people import make_token
from calcode.service.server import serve
from calcode.service.service import Service
from calcode.service.settings import SiteSettings, read_site

_ROLES = ("reference", "validation", "gate", "calibration")
_PROTOCOL = 'description = "Demonstration: a candidate that ran in the shadow."\nmin_shadow_decisions = 20\n'


def serve_demo(*, port: int = 8470, pause: float = 0.2, say: Callable[[str], None]) -> None:
    """Serve the demonstration until Ctrl-C; its folder is deleted at the end.

    Parameters
    ----------
    port : int
    pause : float
        Seconds between two images of the stream.
    say : callable
        Tells where to look.
    """
    with tempfile.TemporaryDirectory(prefix="calcode-demo-") as name:
        say("Fitting the demonstration model (a few seconds)")
        site, stream = demo_site(Path(name), port=port)
        stopped = threading.Event()
        facts: dict[str, Any] = {"example": next(stream)}

        def listening(at: int, service: Service) -> None:
            with service.log.transaction() as transaction:
                token = make_token(transaction, subject="demo", roles=["program", "auditor"], days=1, actor="demo")
            service.tokens.reload()
            facts.update(token=token, port=at)
            say(f"Open http://127.0.0.1:{at}/demo : it says what to try. Ctrl-C ends the demonstration.")
            threading.Thread(target=play, args=(stream, at, token, pause, stopped), daemon=True).start()

        try:
            serve(site, listening=listening, more=[demo_pages(facts)])
        finally:
            stopped.set()


def demo_site(folder: Path, *, port: int) -> tuple[SiteSettings, Iterator[dict[str, Any]]]:
    """A site with the demonstration model, and the requests of a stream of smartphone photographs."""
    features = demo_features()
    images = features.read()
    pad = images[images.column("dataset") == "padufes20"]
    shared = [name for name in features.classes if name in set(pad.column("label_name").tolist())]
    bank = features.prompts
    chosen = [bank.classes.index(name) for name in shared]
    prompts = Prompts(text=bank.text[chosen], temperature=bank.temperature, classes=shared)
    ham = images[images.column("dataset") == "ham10000"].restrict(shared).in_space_only()
    roles = {role: _evidence(ham.with_role(role), prompts) for role in _ROLES}
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
    (folder / "protocol.toml").write_text(_PROTOCOL)
    (folder / "notes").mkdir()
    (folder / "site.toml").write_text(
        f'name = "demo/skin"\ndata = "data"\nport = {port}\ndocs = true\n'
        '[[lines]]\nname = "skin"\nprompts = "demo.prompts.safetensors"\nmodel = "model.safetensors"\n'
        'trusted = ["signer.key.pub"]\nprotocol = "protocol.toml"\nvisit_minutes = 0\n'
        '[checkpoints]\nevery_records = 50\nevery_seconds = 10.0\nfolders = ["notes"]\n'
    )
    return read_site(folder / "site.toml"), requests_of(pad)


def _evidence(cohort: Cohort, prompts: Prompts) -> Evidence:
    evidence = cohort.evidence
    return Evidence.from_text(
        embeddings=evidence.embeddings,
        text=prompts.text,
        temperature=prompts.temperature,
        labels=evidence.labels,
        classes=prompts.classes,
        groups=evidence.groups,
        prompt_digest=prompts.digest,
        backbone=evidence.backbone,
    )


def requests_of(cohort: Cohort) -> Iterator[dict[str, Any]]:
    """The images of a cohort as request bodies, in the order of the file."""
    groups = cohort.evidence.groups
    for row, vector in enumerate(cohort.evidence.embeddings.astype(np.float32)):
        body = {
            "embedding_f32": base64.b64encode(vector.tobytes()).decode(),
            "image_id": f"demo-{row}",
            "site": "pad",
            "device": "smartphone",
        }
        yield body if groups is None else {**body, "group": str(groups[row])}


def play(stream: Iterator[dict[str, Any]], port: int, token: str, pause: float, stopped: threading.Event) -> None:
    """Send requests one by one until they end or the service does."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for body in stream:
        if stopped.wait(pause):
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("POST", "/v1/decisions", body=json.dumps(body), headers=headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()
