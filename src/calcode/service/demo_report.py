"""The story of the demonstration as a figure for its live page, and as a page with pictures (`make loop`)."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from calcode.metrics.wording import counted, percent, short_percent
from calcode.report.charts import Axis, Marks, PlaneChart, plain_number
from calcode.report.page import write_page
from calcode.report.parts import Figure, Picture, Section, Table, Text, columns
from calcode.service import people
from calcode.service.demo_story import ENGINEER, WINDOW, Act, Story
from calcode.service.log import Transaction
from calcode.service.pages import COOKIE

#: Maximum number of points of the curve.
_MOST_POINTS = 200
_WINDOW_SIZE = "1180,1300"
#: Pages to screenshot at each act, with captions.
_LIVE = ("/demo/story", "The live page of the story at this moment")
_SEEN = {
    "start": [_LIVE],
    "alarm": [("/monitor", "The monitor as an engineer sees it: the alarm, and how it is closed")],
    "recalibrated": [("/models", "The models: the new one decides in the shadow")],
    "closed": [("/", "The start page after the alarm was closed")],
    "promoted": [("/models", "The models: the new one answers, and one step leads back"), _LIVE],
    "end": [("/monitor", "The monitor of the site model at the end"), _LIVE],
}


def story_figure(story: Story) -> Figure:
    """Plot how often answers rule something out along the stream, with the acts on the curve."""
    informative = list(story.informative)
    n = len(informative)
    step = max(1, n // _MOST_POINTS)
    ends = list(range(step, n + 1, step))
    rates = {end: _rate(informative, end) for end in ends}
    acts = [(act, min(max(act.image, 1), n)) for act in story.acts if n]
    curve = Marks(
        series=0,
        name="informative answers",
        across=tuple(map(float, ends)),
        up=tuple(rates.values()),
        joined=True,
        cloud=True,
    )
    happened = Marks(
        series=1,
        name="what happened",
        across=tuple(float(at) for _, at in acts),
        up=tuple(_rate(informative, at) for _, at in acts),
        labels=tuple(act.sentence for act, _ in acts),
    )
    return Figure(
        heading="Answers that rule something out",
        sentence=(
            f"Share of the last {WINDOW} answers that hold at least one diagnosis and not all; {n:,} photographs."
        ),
        charts=(
            PlaneChart(
                marks=(curve, happened),
                across=Axis(title="photographs", low=0.0, high=float(max(n, 100)), tick_text=plain_number),
                up=Axis(title="informative", low=0.0, high=1.0, tick_text=short_percent),
            ),
        ),
        legend=((0, "informative answers"), (1, "what happened")),
        numbers=Table(
            caption="Informative rate along the stream",
            columns=columns("photographs", "informative", words=0),
            rows=[[f"{end:,}", short_percent(rates[end])] for end in ends[:: max(1, len(ends) // 12)]],
        ),
    )


def _rate(informative: list[bool], end: int) -> float:
    window = informative[max(0, end - WINDOW) : end]
    return sum(window) / max(1, len(window))


def write_story(story: Story, folder: Path) -> None:
    """Play the story, take screenshots at every act, write both as one page, and stop the service.

    Parameters
    ----------
    story : Story
    folder : Path
        Receives `index.html` and, if chromium is installed, the screenshots.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[Act, list[Picture]] = {}

    def photograph_act(act: Act) -> None:
        seen = _SEEN[act.name]
        files = [f"{len(story.acts):02d}-{act.name}-{number}.png" for number in range(1, len(seen) + 1)]
        pictures[act] = [
            Picture(file=file, sentence=sentence)
            for file, (address, sentence) in zip(files, seen, strict=True)
            if _photographed(story, address, folder / file)
        ]

    story.on_act = photograph_act
    try:
        story.play()
        shares = [percent(rate, digits=0) for rate in story.rates]
        lead = (
            f"Answers that rule something out: {shares[0]} with the model from elsewhere, {shares[1]} with the "
            "promoted site model. Nobody pressed anything: the stream of the demonstration was sent, a reader who "
            "knows the true diagnoses read the cases, and accounts of the demonstration did what an engineer, a "
            "clinician and an approver do."
        )
        sections = [
            Section(key="rates", title="In short", parts=(Text(sentences=(lead,), style="lead"), story_figure(story)))
        ]
        for number, act in enumerate(story.acts, start=1):
            said = Text(sentences=(f"After {act.image:,} photographs. {act.sentence}",))
            title = f"{number}. {act.title}"
            sections.append(Section(key=f"act-{number}", title=title, parts=(said, *pictures.get(act, ()))))
        write_page(folder / "index.html", sections, title="A model learns its new clinic")
        n = sum(map(len, pictures.values()))
        story.say(f"Wrote {folder / 'index.html'} with {counted(n, 'picture')}.")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _photographed(story: Story, address: str, target: Path) -> bool:
    """Take a screenshot of a page as an engineer sees it; False without chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return False

    def session(transaction: Transaction) -> str:
        people.set_roles(transaction, subject=ENGINEER, roles=["engineer"], source="local", actor="demo")
        return people.open_session(transaction, subject=ENGINEER, roles=["engineer"], method="demo")

    token = story.service.change(session)
    story.service.tokens.reload()
    connection = http.client.HTTPConnection("127.0.0.1", story.port, timeout=60)
    connection.request("GET", address, headers={"Cookie": f"{COOKIE}={token}"})
    page = connection.getresponse().read().decode()
    connection.close()
    with tempfile.TemporaryDirectory() as scratch:
        # Headless chromium has no session cookie: it opens the page as a file and loads styles from the service.
        saved = Path(scratch) / "page.html"
        saved.write_text(
            page.replace("<head>", f'<head><base href="http://127.0.0.1:{story.port}/">'), encoding="utf-8"
        )
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={scratch}/profile", f"--window-size={_WINDOW_SIZE}"),
            *(f"--screenshot={target.absolute()}", saved.as_uri()),
        ]
        subprocess.run(command, check=False, capture_output=True, timeout=120)
    return target.is_file()
