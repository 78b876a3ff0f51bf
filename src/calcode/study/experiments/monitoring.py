"""Monitors on real streams: false alarms while nothing changes, and how soon a change is seen (SITE.md S7)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from calcode.arrays import BoolArray, FloatArray, IntArray
from calcode.baselines.support import single_audits
from calcode.errors import CalcodeWarning
from calcode.method.audit import BASE_DIAGNOSTICS, SupportAudit
from calcode.method.evidence import Evidence, robust_probabilities
from calcode.method.model import Calcode
from calcode.metrics.intervals import proportion
from calcode.metrics.wording import count, number, percent
from calcode.monitor import CapitalMonitor, CoverageProcess, ExchangeabilityMartingale, miss_lines
from calcode.report.charts import ChartRow, ReferenceLine, RowChart, from_zero
from calcode.report.parts import Column, Figure, Part, Table, Text, columns
from calcode.study.cohorts import SettingCohorts
from calcode.study.experiment import Experiment, Results, Tables
from calcode.study.figures import PLACE
from calcode.study.jobs import Job, job
from calcode.study.output import StudyOutput
from calcode.study.specification import Study
from calcode.study.tables import Row, TableSchema, integer, numeric, share, text
from calcode.study.view import PLACE_COLS, RowTuple, shown, view

_LEVEL = 0.01
#: Images of a stream while nothing changes, and those before a change.
_LONGEST = 2000
_N_CALM = 300
_AUDIT_RATES = (0.1, 0.3)
_ONE, _EVERY = "one image per group", "every image (not valid)"

SCHEMA = TableSchema(
    name="monitoring",
    about="One row per setting, backbone, monitor, statistic, audit rate and kind of vote: false alarms in streams of "
    "source images, and the delay after a change from source to target.",
    columns=(
        *PLACE,
        text("monitor", "M1 support, M2 scores, M3 coverage.", key=True),
        text("statistic", "What is watched; several classes share the level in M2 and M3.", key=True),
        share("audit_rate", "Share of the images that get a label; 0 for M1, which needs none.", key=True),
        text("votes", "Whose image counts.", key=True),
        numeric("level", "Bound on the probability of ever raising a false alarm."),
        integer("n_streams", "Streams, each with its own deal of gate and stream, its own order and draws."),
        integer("n_images", "Most images of a stream without a change."),
        share("false_alarms", "Streams without a change in which an alarm was raised."),
        share("detected", "Streams with a change in which an alarm was raised after it and none before."),
        numeric("median_delay", "Median images from the change to the alarm; undefined if fewer than half alarm."),
        integer("n_calm", "Images before the change."),
    ),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Images:
    """What the monitors look at, for n images."""

    groups: IntArray
    labels: IntArray
    diagnostics: Mapping[str, FloatArray]
    scores: FloatArray
    accepted: BoolArray
    missed: BoolArray

    @classmethod
    def measure(cls, evidence: Evidence, *, audits: Mapping[str, SupportAudit], model: Calcode, fitted: bool) -> Images:
        """`fitted`: the model was fitted on these images, so it decides on none of them."""
        labels = evidence.require_labels()
        robust = robust_probabilities(evidence.prompt_logits, trim=model.settings_.trim)
        rows = np.arange(len(labels))
        covered = np.ones(len(labels), dtype=np.bool_)
        if not fitted:
            covered = model.decide(evidence.without_identity()).sets[rows, labels]
        return cls(
            groups=rows if evidence.groups is None else np.unique(evidence.groups, return_inverse=True)[1],
            labels=labels,
            diagnostics={name: audits[name].statistic(evidence) for name in BASE_DIAGNOSTICS},
            scores=1.0 - robust[rows, labels],
            accepted=model.audit_p_values(evidence) >= model.settings_.deferral_level,
            missed=~covered,
        )

    def joined(self, other: Images) -> Images:
        """Both, one after the other; their groups differ, because roles share none."""
        return Images(
            groups=np.concatenate([self.groups, other.groups + self.n_groups]),
            labels=np.concatenate([self.labels, other.labels]),
            diagnostics={n: np.concatenate([v, other.diagnostics[n]]) for n, v in self.diagnostics.items()},
            scores=np.concatenate([self.scores, other.scores]),
            accepted=np.concatenate([self.accepted, other.accepted]),
            missed=np.concatenate([self.missed, other.missed]),
        )

    @property
    def n_groups(self) -> int:
        """Lesions or patients."""
        return int(self.groups.max()) + 1

    def representatives(self, rng: np.random.Generator) -> IntArray:
        """One row per group, in random order."""
        shuffled = rng.permutation(len(self.groups))
        _, first = np.unique(self.groups[shuffled], return_index=True)
        drawn: IntArray = shuffled[rng.permutation(first)]
        return drawn


#: Whether a stream without a change raised an alarm, and the delay after a change where there is one.
Outcome = tuple[bool, float | None]
#: Monitor, statistic, audit rate and votes.
Kind = tuple[str, str, float, str]


def measure(cohorts: SettingCohorts, options: Mapping[str, Any]) -> list[Row]:
    """The rows of a combination, without its name; none where the source has no held-out images."""
    if cohorts.held_out is None:
        return []
    roles = cohorts.roles
    with warnings.catch_warnings():
        # Classes with few images are named where the method itself is shown.
        warnings.simplefilter("ignore", CalcodeWarning)
        model = Calcode(random_state=options["seed"]).fit(**roles.by_name)
    audits = single_audits(roles, random_state=options["seed"])
    gate, calibration, calm, changed = (
        Images.measure(evidence, audits=audits, model=model, fitted=fitted)
        for evidence, fitted in (
            (roles.gate, True),
            (roles.calibration, True),
            (cohorts.held_out.evidence, False),
            (cohorts.target.evidence, False),
        )
    )
    lines = list(miss_lines(model).values())
    gate_and_calm, calibration_and_calm = gate.joined(calm), calibration.joined(calm)
    outcomes: dict[Kind, list[Outcome]] = {}
    for stream in range(options["n_streams"]):
        rng = np.random.default_rng([options["seed"], stream])
        after = changed.representatives(rng) if cohorts.setting.shifted else None
        supports = support_streams(gate_and_calm, gate.n_groups, changed, after, rng)
        labels = label_streams(calibration_and_calm, calibration.n_groups, calm, changed, after, lines, rng)
        for key, outcome in {**supports, **labels}.items():
            outcomes.setdefault(key, []).append(outcome)
    rows = []
    for (monitor, statistic, rate, votes), found in outcomes.items():
        delays = np.array([delay for _, delay in found if delay is not None])
        detected = float(np.isfinite(delays).mean()) if len(delays) else np.nan
        rows.append(
            {"monitor": monitor, "statistic": statistic, "audit_rate": rate, "votes": votes}
            | {"level": _LEVEL, "n_streams": options["n_streams"], "n_images": _LONGEST, "n_calm": _N_CALM}
            | {"false_alarms": float(np.mean([false for false, _ in found])), "detected": detected}
            | {"median_delay": float(np.median(delays)) if detected > 0.5 else np.nan}
        )
    return rows


def support_streams(
    home: Images, n_gate: int, changed: Images, after: IntArray | None, rng: np.random.Generator
) -> dict[Kind, Outcome]:
    """M1 on every diagnostic, with gate and calm images in another order; and once with every image of a group."""
    dealt = home.representatives(rng)
    gate, calm = dealt[:n_gate], dealt[n_gate:][:_LONGEST]
    seed = int(rng.integers(2**31))
    outcomes: dict[Kind, Outcome] = {}
    for name, values in home.diagnostics.items():
        false = _alarm_at(values[gate], values[calm], seed=seed) is not None
        delay = None
        if after is not None:
            quiet = values[calm[:_N_CALM]]
            arrivals = np.concatenate([quiet, changed.diagnostics[name][after]])
            delay = _delay(_alarm_at(values[gate], arrivals, seed=seed), len(quiet))
        outcomes["M1", name, 0.0, _ONE] = false, delay
    # A lesion's images follow each other, as they do in a clinic.
    turn = np.full(home.n_groups, len(calm))
    turn[home.groups[calm]] = np.arange(len(calm))
    order = np.argsort(turn[home.groups], kind="stable")
    members = order[: int((turn[home.groups] < len(calm)).sum())][:_LONGEST]
    distances = home.diagnostics["distance"]
    several = _alarm_at(distances[gate], distances[members], seed=seed) is not None
    outcomes["M1", "distance", 0.0, _EVERY] = several, None
    return outcomes


def _alarm_at(gate: FloatArray, values: FloatArray, *, seed: int) -> int | None:
    martingale = ExchangeabilityMartingale(gate.tolist(), alpha=_LEVEL, seed=seed)
    for value in values.tolist():
        alarm_at = martingale.update(value).alarm_at
        if alarm_at is not None:
            return alarm_at
    return None


def _delay(alarm_at: int | None, n_calm: int) -> float:
    """Images from the change to the alarm; infinite if there is none, or if one came too early."""
    return float(alarm_at - n_calm) if alarm_at is not None and alarm_at > n_calm else np.inf


def label_streams(
    home: Images,
    n_reference: int,
    calm: Images,
    changed: Images,
    after: IntArray | None,
    lines: Sequence[float],
    rng: np.random.Generator,
) -> dict[Kind, Outcome]:
    """M2 and M3 at every audit rate; reference and calm images of M2 are dealt out again."""
    dealt = home.representatives(rng)
    before = calm.representatives(rng)[:_LONGEST]
    seed = int(rng.integers(2**31))
    outcomes: dict[Kind, Outcome] = {}
    for rate in _AUDIT_RATES:
        drawn = rng.random((2, _LONGEST + len(changed.labels))) < rate
        for monitor, source, rows in (("M2", home, dealt[n_reference:][:_LONGEST]), ("M3", calm, before)):
            delay = None
            calm_events = _events(source, rows, drawn[0])
            watched = _class_monitors(monitor, home, dealt[:n_reference], lines, seed)
            false = _first_alarm(monitor, watched, calm_events) is not None
            if after is not None:
                events = _events(source, rows[:_N_CALM], drawn[0])
                later = _events(changed, after, drawn[1], first=len(rows[:_N_CALM]))
                watched = _class_monitors(monitor, home, dealt[:n_reference], lines, seed)
                alarm = _first_alarm(monitor, watched, events + later)
                delay = _delay(alarm, len(rows[:_N_CALM]))
            outcomes[monitor, {"M2": "zero-shot scores", "M3": "misses"}[monitor], rate, _ONE] = false, delay
    return outcomes


_Event = tuple[int, int, float, bool]


def _events(images: Images, rows: IntArray, drawn: BoolArray, *, first: int = 0) -> list[_Event]:
    """Reviewed and accepted cases in order: number of the image, class, score, miss."""
    return [
        (first + position + 1, int(images.labels[row]), float(images.scores[row]), bool(images.missed[row]))
        for position, row in enumerate(rows.tolist())
        if drawn[position] and images.accepted[row] and images.labels[row] >= 0
    ]


def _class_monitors(
    monitor: str, home: Images, reference: IntArray, lines: Sequence[float], seed: int
) -> list[CapitalMonitor]:
    """One per class, each with its share of the level."""
    alpha = _LEVEL / len(lines)
    if monitor == "M3":
        return [CoverageProcess(line=line, alpha=alpha) for line in lines]
    of_class = [reference[(home.labels[reference] == k) & home.accepted[reference]] for k in range(len(lines))]
    return [
        ExchangeabilityMartingale(home.scores[rows].tolist(), alpha=alpha, seed=[seed, k])
        for k, rows in enumerate(of_class)
    ]


def _first_alarm(monitor: str, watched: Sequence[CapitalMonitor], events: Sequence[_Event]) -> int | None:
    """Number of the image whose label raised the first alarm."""
    for image, label, score, missed in events:
        if watched[label].update(missed if monitor == "M3" else score).alarm_at is not None:
            return image
    return None


def jobs(study: Study) -> list[Job]:
    """One per combination."""
    options = {"seed": study.seed, "n_streams": study.options["monitored_streams"]}
    return [job(f"{__name__}:measure", "monitoring", where, options) for where in study.combinations()]


def tables(study: Study, results: Results) -> Tables:
    """The measured rows with their names."""
    return {SCHEMA.name: results.measured(jobs(study))}


def section(output: StudyOutput) -> list[Part]:
    """What was found, delays side by side, and false alarms as a figure with every number behind it."""
    rows = output.table(SCHEMA.name)
    streams = f"{count(int(rows['n_streams'].iloc[0]))} streams"
    sentences = (
        f"Monitors at level {_LEVEL:g} on {streams} of up to {count(_LONGEST)} source images. Each has its own deal "
        "of gate and stream, its own order and draws. A monitor keeps its level if false alarms stay near it or below.",
        "With every image of a lesion voting, the same monitor is no longer valid: images of a lesion are alike.",
        "A silent M3 says that misses stay within the line of their class, not that nothing has changed.",
    )
    alarms = {
        row.Index: proportion(round(row.false_alarms * row.n_streams), row.n_streams) for row in rows.itertuples()
    }
    axis = from_zero([estimate.high for estimate in alarms.values()])
    figure = Figure(
        heading="False alarms while nothing changes",
        sentence=f"Share of {streams} with a false alarm, with its 95 % interval; the line is the level.",
        legend=((0, "false alarms"),),
        charts=tuple(
            RowChart(
                heading=f"{setting}, {backbone}",
                rows=[
                    ChartRow(
                        label=f"{row.monitor} {row.statistic}",
                        note=votes_words(row),
                        values={0: alarms[row.Index]},
                        marked=row.votes == _EVERY,
                    )
                    for row in group.itertuples()
                ],
                references=(ReferenceLine(_LEVEL, "level"),),
                axis=axis,
            )
            for (setting, backbone), group in rows.groupby(["setting", "backbone"], sort=False)
        ),
        numbers=view(
            "monitoring",
            f"False alarms of monitors at level {_LEVEL:g}, and streams in which a change is seen.",
            rows,
            (
                *PLACE_COLS,
                *shown(SCHEMA, "monitor", "statistic"),
                Column("votes", votes_words, numeric=False),
                *shown(SCHEMA, "false_alarms"),
                Column("change seen", lambda row: "" if np.isnan(row.detected) else percent(row.detected)),
            ),
        ),
        name="monitoring-false-alarms",
    )
    changed = rows[rows["detected"].notna()]
    return [Text(sentences=sentences), *([delay_table(changed)] if len(changed) else []), figure]


def votes_words(row: RowTuple) -> str:
    """Whose image counts, in words."""
    return str(row.votes) if row.audit_rate == 0 else f"{percent(row.audit_rate, digits=0)} reviewed"


def delay_table(changed: pd.DataFrame) -> Table:
    """One row per monitor, one column per combination with a change."""
    delays = {
        (row.monitor, row.statistic, votes_words(row), row.setting, row.backbone): row.median_delay
        for row in changed.itertuples()
    }
    places = list(dict.fromkeys(key[3:] for key in delays))
    lines = []
    for monitor in dict.fromkeys(key[:3] for key in delays):
        cells = [delays.get((*monitor, *place), np.nan) for place in places]
        lines.append([*monitor, *("rarely seen" if np.isnan(n) else number(n, digits=0) for n in cells)])
    return Table(
        name="monitoring-delays",
        caption=f"Median number of images from a change to the alarm, after {_N_CALM} images without one. "
        '"Rarely seen": fewer than half of the streams raised an alarm.',
        columns=columns(
            "monitor", "statistic", "votes", *[f"{setting}, {backbone}" for setting, backbone in places], words=3
        ),
        rows=lines,
        layout="scroll",
    )


OPTIONS = ("monitored_streams", Annotated[int, Field(ge=1, le=100_000)], 200)
EXPERIMENT = Experiment("monitoring", "Monitors: false alarms and delays", (SCHEMA,), jobs, tables, section, OPTIONS)
