"""What `calcode demo --image` shows of one photograph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calcode.errors import ImageError

if TYPE_CHECKING:
    from rich.table import Table

    from calcode.cli.screen import Screen
    from calcode.method.explain import Explanation


def show_photograph(path: Path, *, as_json: bool) -> None:
    """Decide on a photograph with the demonstration's encoder and explain the decision."""
    from calcode.cli.screen import Screen
    from calcode.demo.image import explain_image

    if not path.is_file():
        raise ImageError(f"{path} is not a file; give a photograph with --image")
    screen = Screen()
    with screen.working(f"Deciding on {path.name}"):
        explanation = explain_image(path)
    if as_json:
        screen.emit("demo", {"image": str(path), **explanation.to_dict()})
        return
    screen.heading(path.name)
    screen.say(explanation.answer, style="bold")
    screen.say()
    for reason in explanation.why:
        screen.point(reason)
    if explanation.verdicts:
        screen.heading("The diagnoses")
        screen.show(_verdicts(explanation))
    screen.heading("Nearest reference images")
    screen.show(_neighbours(explanation))
    _close(screen)


def _verdicts(explanation: Explanation) -> Table:
    from calcode.cli.screen import plain_table

    table = plain_table()
    for column in ("diagnosis", "probability", "score", "may reach", "in the set"):
        table.add_column(column, overflow="fold")
    for verdict in sorted(explanation.verdicts, key=lambda entry: entry.score):
        table.add_row(
            verdict.title,
            f"{verdict.probability:.3f}",
            f"{verdict.score:.3f}",
            f"{verdict.threshold:.3f}",
            f"yes, {verdict.kept_by}" if verdict.kept_by else "no",
        )
    return table


def _neighbours(explanation: Explanation) -> Table:
    from calcode.cli.screen import plain_table

    table = plain_table()
    for column in ("image", "diagnosis", "distance"):
        table.add_column(column)
    for neighbour in explanation.neighbours:
        table.add_row(neighbour.id, neighbour.label_name, f"{neighbour.distance:.4f}")
    return table


def _close(screen: Screen) -> None:
    screen.say()
    screen.say(
        "A small encoder of dermoscopic images decided here; a photograph of anything else is outside what it was "
        "calibrated for. Research software, not a medical device."
    )
