"""`calcode monitor`: do new images still resemble the calibration images, and do the sets still cover?"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from calcode.cli.options import NAMESAKES, AsJson, ModelFile, PromptFile, output_option
from calcode.cli.running import ExitCode, Screen, output_file, plain_table
from calcode.errors import CalcodeWarning, FeatureFileError, MismatchError, RoleError

if TYPE_CHECKING:
    from calcode.cohorts import FeatureFile
    from calcode.method.decisions import Decisions
    from calcode.method.evidence import Evidence
    from calcode.method.model import Calcode
    from calcode.monitor import Watch
    from calcode.site import SiteModel

_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


def monitor(
    model: ModelFile,
    features: Annotated[
        list[Path],
        typer.Argument(metavar="FEATURES", help="Feature files of the images that came, in the order of time."),
    ],
    decisions: Annotated[
        list[Path] | None,
        typer.Option(
            help="Decisions on these images as they were given; repeat it for several files. Without it the model "
            "decides again.",
            metavar="FILE",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV of reviewed cases in the order in which they came: id, label (a class; 'other': outside the "
            "label space; 'cannot tell' or empty: it stayed without a label) and, if only some were drawn at random, "
            "coin (1 or 0).",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[Path | None, output_option(help="Page to write, .html.")] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="JSON file that keeps the monitors from one day to the next; made if it is not there.", metavar="FILE"
        ),
    ] = None,
    recalibrated: Annotated[
        bool,
        typer.Option(
            "--recalibrated",
            help="The model is a recalibration with the bag of the model in --state, grown: coverage is watched "
            "from the start, at half the level.",
        ),
    ] = False,
    time: Annotated[
        str | None,
        typer.Option(
            help="Column with the time of an image. Without it files and rows are in order.", metavar="COLUMN"
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File with the site's secret, so that the image that was reviewed stands for its patient.",
            metavar="FILE",
        ),
    ] = None,
    false_alarm: Annotated[
        float, typer.Option(help="Probability of ever raising a false alarm, at most.", metavar="SHARE")
    ] = 0.01,
    prompts: PromptFile = None,
    as_json: AsJson = False,
) -> None:
    """Watch a model in use: alarms that stay valid however often you look.

    M1 compares the distances of new images with those of the gate and needs no labels. M2 and M3 compare scores and
    coverage of reviewed cases that were drawn at random, class by class. One image per patient or lesion votes, once.
    A home model is watched against its home gate and a site model against its site gate. Exit code 3 says that an
    alarm was raised, now or in an earlier run of the same --state.

    Examples
    --------
    calcode monitor model.safetensors clinic-*.parquet -o monitor.html
    calcode monitor model.safetensors today.parquet --state monitor.json
    calcode monitor site.safetensors new.parquet --labels reviews.csv
    """
    import numpy as np

    from calcode.cohorts import open_features
    from calcode.engines.local import require_classes, require_review_probability
    from calcode.monitor import replay
    from calcode.site import SiteModel, load_model

    inputs = [model, *features, *(decisions or ()), labels, secret, prompts]
    if output is not None:
        output_file(output, suffixes=(".html",), inputs=[*inputs, state])
    if state is not None:
        output_file(state, suffixes=(".json",), inputs=inputs, option="--state")
    if recalibrated and state is None:
        raise typer.BadParameter("it needs the --state of the model before", param_hint="--recalibrated")
    screen = Screen(as_json)
    fitted = load_model(model)
    watch = open_watch(fitted, model=model, state=state, recalibrated=recalibrated, false_alarm=false_alarm)
    earlier = len(watch.alarms)
    key = fitted.digest_.encode() if secret is None else secret.read_bytes()
    given = GivenDecisions.read(decisions, model_digest=fitted.digest_) if decisions else None
    counts, seen = [], dict[str, Path]()
    with screen.counting("Images", total=None) as advance:
        for path in features:
            file = open_features(path, prompts=prompts)
            require_classes(file, fitted.classes_)
            if given is None and isinstance(fitted, SiteModel):
                require_review_probability(file, fitted)
            evidence, times = images_in_order(file, classes=fitted.classes_, time=time)
            ids = np.asarray(evidence.ids).tolist()
            twice = [name for name in ids if name in seen]
            if twice:
                raise FeatureFileError(
                    f"{path}: {len(twice)} of its images are in {seen[twice[0]]} too (first: {twice[0]!r}); give each "
                    "once"
                )
            seen.update(dict.fromkeys(ids, path))
            # Images of an earlier run are no error: they are recognised and ignored.
            new = zip(ids, times or (), strict=False)
            oldest = next((when for name, when in new if not watch.knows(name)), None)
            if oldest is not None and watch.seen_until:
                first, newest = _sortable([oldest, watch.seen_until])
                if first < newest:
                    raise FeatureFileError(
                        f"{path}: out of order, it has a new image of {oldest} and images up to {watch.seen_until} "
                        "have voted; give the files in the order of time"
                    )
            decided = None if given is None else given.on_images(ids, path=path)
            try:
                counts.append(replay(watch, fitted, evidence, decisions=decided, times=times, secret=key))
            except RoleError as error:
                found = str(error).removeprefix("evidence: ").rpartition(";")[0]
                raise RoleError(
                    f"{path}: {found}, and it cannot be watched on them; give files of new images{NAMESAKES}"
                ) from error
            advance(len(ids))
    reviews = None if labels is None else _review(watch, labels, time=time)
    if state is not None:
        watch.save(state)
    if output is not None:
        from calcode.report.monitor_page import write_monitor_page

        write_monitor_page(output, watch, model_name=model.name)
    totals = {name: sum(getattr(count, name) for count in counts) for name in counts[0]._fields}
    screen.emit("monitor", {"images": totals, "labels": reviews, **watch.facts})
    _show(watch, totals=totals, reviews=reviews, earlier=earlier, output=output, screen=screen)
    if watch.alarms:
        raise typer.Exit(int(ExitCode.ALARM))


def open_watch(
    fitted: Calcode | SiteModel, *, model: Path, state: Path | None, recalibrated: bool, false_alarm: float
) -> Watch:
    """The monitors of a model: new ones, or those in `state`, which must be of this model or of its predecessor."""
    from calcode.monitor import Watch, miss_lines, watch_model

    if state is None or not state.exists():
        if recalibrated:
            raise FeatureFileError(f"{state}: no such file; --recalibrated goes on with the state of the model before")
        return watch_model(fitted, false_alarm=false_alarm)
    watch = Watch.load(state)
    if recalibrated:
        if watch.model_digest == fitted.digest_:
            raise MismatchError(f"{state}: {model} is watched in it already; leave --recalibrated out")
        watch.recalibrate(lines=miss_lines(fitted), model_digest=fitted.digest_)
    if watch.model_digest != fitted.digest_:
        raise MismatchError(
            f"{state}: monitors of another model than {model}; name a new state file, or add --recalibrated if the "
            "model was recalibrated with the same bag"
        )
    if not math.isclose(watch.false_alarm, false_alarm):
        raise MismatchError(
            f"{state}: began with --false-alarm {watch.false_alarm:g}, and the level cannot change afterwards"
        )
    return watch


class GivenDecisions(NamedTuple):
    """Decisions that were given, indexed by the ids of their images."""

    decisions: Decisions
    rows: dict[str, int]

    @classmethod
    def read(cls, paths: Sequence[Path], *, model_digest: str) -> GivenDecisions:
        """Read all decision files together; each image may be decided only once, and by this model."""
        from calcode.cohorts import decisions_from, read_decisions
        from calcode.method.decisions import Decisions

        parts, rows, decided_in = [], dict[str, int](), dict[str, Path]()
        for path in paths:
            part = decisions_from(read_decisions(path))
            if part.ids is None:
                raise FeatureFileError(f"{path}: has no column 'id'; decide again on images with ids")
            if part.model_digest != model_digest:
                raise MismatchError(f"{path}: decided by another model; give the model file that decided")
            for name in part.ids.tolist():
                if name in decided_in:
                    raise FeatureFileError(
                        f"{path}: image {name!r} is decided in {decided_in[name]} too; give each decision once"
                    )
                rows[name], decided_in[name] = len(rows), path
            parts.append(part)
        return cls(Decisions.concatenate(parts), rows)

    def on_images(self, ids: Sequence[str], *, path: Path) -> Decisions:
        """The decisions on the images of a feature file, in the file's order."""
        missing = [name for name in ids if name not in self.rows]
        if missing:
            raise FeatureFileError(
                f"{path}: {len(missing)} of its images have no decision (first: {missing[0]!r}); give all decisions"
            )
        return self.decisions[[self.rows[name] for name in ids]]


def images_in_order(
    file: FeatureFile, *, classes: Sequence[str], time: str | None
) -> tuple[Evidence, list[str] | None]:
    """The images of a file ordered by the column `time`, and their times; without `time`, in file order."""
    import numpy as np
    import pyarrow as pa

    from calcode.cohorts.parquet import stream_tables, text_values

    path, columns = file.path, file.contents.columns
    if time is not None and time not in columns:
        raise FeatureFileError(f"{path}: no column {time!r} for --time; it has {', '.join(columns)}")
    wanted = [name for name in columns if name in ("id", "group", "review_probability", "embedding", time)]
    table = pa.concat_tables(stream_tables(path, columns=wanted, batch_size=65_536))
    evidence = file.evidence_from(table, classes=classes)
    if time is None:
        return evidence, None
    times = text_values(table[time]).tolist()
    if "" in times:
        raise FeatureFileError(f"{path}: column {time!r} is empty in {times.count('')} rows; fill it in")
    order = sorted(range(len(times)), key=_sortable(times).__getitem__)
    return evidence[np.array(order)], [times[row] for row in order]


def _sortable(times: Sequence[str]) -> list[Any]:
    """Times as numbers if all of them are numbers, else as text (such as 2026-11-15T08:30)."""
    try:
        return [float(value) for value in times]
    except ValueError:
        return list(times)


def _review(watch: Watch, path: Path, *, time: str | None) -> dict[str, int]:
    """Let the labels of a CSV file vote in file order; return how many did, and why the others did not."""
    from calcode.cohorts.parquet import unknown_labels_sentence
    from calcode.site.sheet import CANNOT_TELL, OTHER, read_lines

    names = list(watch.classes)
    counts = dict.fromkeys(("votes", "without_label", "out_of_space", "not_drawn", "no_vote", "unknown"), 0)
    known: dict[str, str] = {}
    columns, lines = read_lines(path)
    if not {"id", "label"} <= set(columns):
        raise FeatureFileError(f"{path}: columns id and label are needed; it has {', '.join(columns) or 'none'}")
    for number, line in lines.items():
        name, label, coin = line["id"], line.get("label"), (line.get("coin") or "1").lower()
        if not name or label is None or coin not in (*_TRUE, *_FALSE):
            raise FeatureFileError(
                f"{path}: line {number} needs an id, a label (which may be empty) and, where there is a column coin, "
                "1 or 0"
            )
        if known.setdefault(name, label) != label:
            raise FeatureFileError(f"{path}: {name!r} is {known[name]!r} and {label!r}; settle it first")
        index = None if label in ("", CANNOT_TELL) else names.index(label) if label in names else -1
        if coin in _FALSE:
            counts["not_drawn"] += 1
        elif not watch.knows(name):
            counts["unknown"] += 1
        elif not watch.review(name, label=index, when=line.get(time or "") or ""):
            counts["no_vote"] += 1
        elif index is None:
            counts["without_label"] += 1
        else:
            counts["out_of_space" if index < 0 else "votes"] += 1
    strange = Counter(label for label in known.values() if label not in (CANNOT_TELL, OTHER))
    sentence = unknown_labels_sentence(strange, names)
    if sentence:
        warnings.warn(f"{path}: {sentence}", CalcodeWarning, stacklevel=2)
    return counts


def _show(
    watch: Watch,
    *,
    totals: dict[str, int],
    reviews: dict[str, int] | None,
    earlier: int,
    output: Path | None,
    screen: Screen,
) -> None:
    from calcode.metrics.wording import counted

    said = f"{counted(totals['n'], 'image')}: {counted(totals['votes'], 'group')} voted, each with one image"
    if totals["recognised"]:
        said += f"; {totals['recognised']:,} images were recognised from an earlier run"
    if totals["in_model"]:
        said += f"; {counted(totals['in_model'], 'group')} of the model's own had no vote"
    screen.say(f"{said}.")
    if reviews is not None:
        words = {
            "without_label": "without a label",
            "out_of_space": "outside the label space",
            "not_drawn": "not drawn at random",
            "no_vote": "of images that do not stand for their group, or of groups that had voted",
            "unknown": "of images that were not given",
        }
        others = [f"{reviews[key]:,} {word}" for key, word in words.items() if reviews[key]]
        screen.say(f"Labels: {reviews['votes']:,} voted{''.join(f'; {text}' for text in others)}.")
    if watch.support is None:
        screen.say(
            "M1 is off: the model keeps no distances of a gate. Fit the home model again, or fit the site model "
            "with a gate.",
            style="yellow",
        )
    else:
        reading = watch.support.reading
        screen.say(
            f"M1 support: evidence {_evidence(reading.log_capital)} after {counted(reading.n, 'group')}, alarm at "
            f"{1 / watch.support.alpha:,.0f}."
        )
    screen.say()

    table = plain_table("class", "labels", "coverage", "interval", "size", "full", "M2", "M3")
    for name, entry in watch.classes.items():
        counts, interval = entry.counts, entry.as_hits.interval
        labelled = counts.hits + counts.misses
        table.add_row(
            name,
            f"{labelled:,}" + f" + {counts.missing:,}" * bool(counts.missing),
            f"{counts.coverage(missing_as=True):.3f}" if counts.n else "",
            f"[{interval.low:.3f}, {interval.high:.3f}]" if counts.n else "",
            f"{entry.size_sum / labelled:.2f}" if labelled else "",
            f"{entry.n_full / labelled:.2f}" if labelled else "",
            *(_evidence(monitor.reading.log_capital) for monitor in (entry.scores, entry.coverage)),
        )
    screen.show(table)
    alphas = {
        monitor: min(getattr(entry, attribute).alpha for entry in watch.classes.values())
        for monitor, attribute in (("M2", "scores"), ("M3", "coverage"))
    }
    lines = ", ".join(f"{monitor} at {1 / alpha:,.0f}" for monitor, alpha in alphas.items())
    screen.say(
        "Coverage is over accepted cases drawn for review, with a 95 % confidence sequence that may be read at any "
        "time. Cases without a label are written after the plus and count as hits; the page shows them both ways. "
        f"M2 (scores) and M3 (misses) are evidence of a change; an alarm is raised for {lines}."
    )
    if watch.alarms:
        screen.heading("Alarms")
        for number, alarm in enumerate(watch.alarms):
            screen.point(f"{'(earlier) ' * (number < earlier)}{alarm.finding} {alarm.advice}")
    else:
        screen.say("No alarm.", style="green")
    if output is not None:
        screen.say(f"Wrote {output}. Open it in a browser.")


def _evidence(log_capital: float) -> str:
    """The evidence in few characters."""
    return f"{math.exp(log_capital):,.3g}" if log_capital < 14 else f"1e{log_capital / math.log(10):.0f}"
