"""The story of the demonstration as a figure for its live page, and as a page with pictures (`make loop`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from calcode.files import replacing
from calcode.metrics.wording import short_percent
from calcode.report.charts import Axis, Marks, PlaneChart, plain_number
from calcode.report.parts import Figure, Table, columns
from calcode.service.demo_story import WINDOW, Act, Story

#: Points of the curve at most.
_MOST_POINTS = 200
_WINDOW_SIZE = "1180,1500"


def story_figure(story: Story) -> Figure:
    """How often an answer said something, along the stream, with the acts on the curve."""
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
        heading="Answers that say something",
        sentence=(
            f"Share of the last {WINDOW} answers that name at least one diagnosis and not all; {n:,} photographs."
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
    """Play the story, take a picture of its page at every act, write both as one page, and end the service.

    Parameters
    ----------
    story : Story
    folder : Path
        Gets `index.html` and the pictures; without chromium there are none.
    """
    from calcode.report.page import style_sheet
    from calcode.service.pages import environment

    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[Act, str] = {}

    def told(act: Act) -> None:
        name = f"{len(story.acts):02d}-{act.name}.png"
        if _picture(f"http://127.0.0.1:{story.port}/demo/story", folder / name):
            pictures[act] = name

    story.told = told
    try:
        story.play()
        template = environment().get_template("story_report.html")
        page = template.render(
            acts=story.acts, pictures=pictures, rates=story.rates, figure=story_figure(story), style=style_sheet()
        )
        with replacing(folder / "index.html") as temporary:
            temporary.write_text(page, encoding="utf-8")
        story.say(f"Wrote {folder / 'index.html'} with {len(pictures)} pictures.")
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _picture(address: str, target: Path) -> bool:
    """A picture of a page as a browser shows it; False without chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return False
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(
                f"--user-data-dir={profile}",
                f"--window-size={_WINDOW_SIZE}",
                f"--screenshot={target.absolute()}",
                address,
            ),
        ]
        subprocess.run(command, check=False, capture_output=True, timeout=120)
    return target.is_file()
