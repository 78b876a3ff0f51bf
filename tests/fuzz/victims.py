"""The files that are damaged, how each kind is read, and what must be true of one that can still be read."""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.mutations import mutated_array, mutated_bytes, mutated_json, mutated_table
from hostile_models import read_parts, write_parts
from safetensors import safe_open
from safetensors.numpy import save_file
from site_file_oracle import decisions_of
from worlds import World, fit_quietly

from calcode import Calcode, CalcodeWarning, Decisions, Evidence
from calcode.backbones.preprocessing import preprocessing_from
from calcode.cohorts import (
    Prompts,
    open_features,
    prompt_digest,
    read_decisions,
    read_prompts,
    write_decisions,
    write_features,
)
from calcode.cohorts.decision_reader import decisions_from
from calcode.files import canonical_json, parsed_json
from calcode.method.localized import LocalizedRule
from calcode.method.tail import discover_tail
from calcode.monitor import Case, Watch
from calcode.site import SiteModel
from calcode.study.study_file import read_study

WORLD = World(n_classes=3, dimension=5, prior=(0.5, 0.3, 0.2), seed=3)
IMAGES = WORLD.draw(12, seed=77, name="new")
REVIEWED = WORLD.draw(240, seed=100, shift=0.6, name="site")
SITE_IMAGES = WORLD.draw(16, seed=78, shift=0.6)
#: Two patients who were reviewed, then new ones.
SITE_GROUPS = ("site-group-0", "site-group-31", *(f"new-group-{i}" for i in range(13)), "")


@dataclass(frozen=True)
class Victim:
    """A kind of file.

    Attributes
    ----------
    name : str
    path : Path
        An undamaged file.
    damage : callable
        (undamaged file, file to write, rng): write a damaged one, its digest right where it has one.
    read : callable
        Read it and use it; raises `CalcodeError` or gives what `check` looks at.
    """

    name: str
    path: Path
    damage: Callable[[Path, Path, random.Random], None]
    read: Callable[[Path], object]


def _damaged_model(source: Path, target: Path, rng: random.Random) -> None:
    key, metadata, tensors = read_parts(source)
    for _ in range(rng.choice([1, 1, 1, 2])):
        if rng.random() < 0.5:
            metadata = mutated_json(metadata, rng)
        else:
            name = rng.choice(sorted(tensors))
            kind = rng.random()
            if kind < 0.1:
                del tensors[name]
            elif kind < 0.15:
                tensors[name] = tensors[rng.choice(sorted(tensors))]
            else:
                tensors[name] = mutated_array(tensors[name], rng)
    write_parts(target, key, metadata, tensors)


def _equal(first: Decisions, second: Decisions) -> None:
    for name in ("action", "reason", "label", "sets", "p_audit", "threshold"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def _read_model(path: Path) -> object:
    """A model that loads decides as one whose rule, guards and level are made anew from what the file says."""
    model = Calcode.load(path)
    model.promises_, repr(model)
    evidence = _evidence_for(model.evidence_format_)
    decisions = model.decide(evidence)
    settings, rule = model.settings_, model.rule_
    anew = Calcode.load(path)
    anew.tail_reasons_ = discover_tail(
        anew.tail_evidence_,
        min_class_count=settings.min_class_count,
        protect=settings.protect,
        always_protect=settings.always_protect,
    )
    anew._install(
        rule=LocalizedRule.fit(
            rule.embeddings,
            rule.scores,
            bandwidth=anew.bandwidth_,
            miscoverage=settings.miscoverage,
            level=settings.level,
            grid=settings.level_grid,
        ),
        labels=model.calibration_labels_,
    )
    _equal(decisions, anew.decide(evidence))
    return decisions


def _read_site(path: Path) -> object:
    """A site model that loads decides as an adapter that is refitted with what the file says, row by row."""
    model = SiteModel.load(path)
    model.promises_, repr(model)
    evidence = _evidence_for(model.evidence_format_, images=SITE_IMAGES, groups=SITE_GROUPS)
    e = np.linspace(0.0, 1.0, len(evidence)) if model.settings_.calibrate_with == "weighted" else None
    decisions = model.decide(evidence, e)
    _, metadata, tensors = read_parts(path)
    expected = decisions_of(metadata, tensors, evidence, e)
    np.testing.assert_allclose(decisions.scores, expected.pop("scores"), rtol=0.0, atol=1e-9)
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(decisions, name), values, err_msg=name)
    return decisions


def _evidence_for(expected: Any, *, images: Evidence = IMAGES, groups: Sequence[str] | None = None) -> Evidence:
    """Images as a model wants them, whatever it wants within reason."""
    if (expected.classes, expected.dimension, expected.n_prompts) == (images.classes, 5, 5):
        logits, embeddings = images.prompt_logits, images.embeddings
    else:
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(6, min(expected.n_prompts, 1000), len(expected.classes)))
        embeddings = np.eye(6, min(expected.dimension, 1000)) + 0.1
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return Evidence(
        embeddings=embeddings,
        prompt_logits=logits,
        classes=expected.classes,
        prompt_digest=expected.prompt_digest,
        backbone=expected.backbone,
        ids=[f"new-{i}" for i in range(len(embeddings))],
        groups=None if groups is None else groups[: len(embeddings)],
    )


def _damaged_prompts(source: Path, target: Path, rng: random.Random) -> None:
    with safe_open(source, framework="numpy") as file:
        facts = json.loads(file.metadata()["calcode-prompts"])
        text = file.get_tensor("text").copy()
    if rng.random() < 0.5:
        text = mutated_array(text, rng)
    else:
        facts = mutated_json(facts, rng)
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # too damaged for a digest
        facts["digest"] = prompt_digest(
            text=text.astype(np.float32), temperature=facts["temperature"], classes=facts["classes"]
        )
    save_file({"text": np.ascontiguousarray(text)}, target, metadata={"calcode-prompts": canonical_json(facts)})


def _read_prompts(path: Path) -> object:
    prompts = read_prompts(path)
    assert np.isfinite(prompts.text).all()
    assert prompts.temperature > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        Evidence.from_text(
            embeddings=np.eye(2, prompts.dimension) + 0.1,
            text=prompts.text,
            temperature=prompts.temperature,
            classes=prompts.classes,
        )
    return repr(prompts)


def _damaged_archive(source: Path, target: Path, rng: random.Random) -> None:
    if rng.random() < 0.4:
        target.write_bytes(mutated_bytes(source.read_bytes(), rng))
        return
    with np.load(source) as archive:
        arrays = dict(archive)
    name = rng.choice(sorted(arrays))
    arrays[name] = (
        mutated_array(np.atleast_1d(arrays[name]), rng)
        if arrays[name].dtype.kind == "f"
        else np.array(rng.choice([[], ["c0", "c0", "c1"], [1, 2, 3], "x", [["c0", "c1", "c2"]], [b"\xff", b"b", b"c"]]))
    )
    if rng.random() < 0.2:
        del arrays[name]
    np.savez(target, **arrays)


def _damaged_parquet(source: Path, target: Path, rng: random.Random) -> None:
    if rng.random() < 0.3:
        target.write_bytes(mutated_bytes(source.read_bytes(), rng))
        return
    table = mutated_table(pq.read_table(source), rng)
    if rng.random() < 0.3 and table.num_columns:
        table = mutated_table(table, rng)
    try:
        pq.write_table(table, target)
    except (pa.ArrowException, ValueError):
        target.write_bytes(mutated_bytes(source.read_bytes(), rng))


def _read_features(prompts: Path) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        features = open_features(path, prompts=prompts)
        rows = 0
        for cohort in features.batches():
            assert np.isfinite(cohort.evidence.embeddings).all()
            rows += len(cohort.evidence)
        return repr(features), rows

    return read


def _read_decisions(path: Path) -> object:
    """Decisions that can be read say of every image what can be."""
    table = read_decisions(path)
    decisions = decisions_from(table)
    answered = decisions.label >= 0
    assert decisions.sets[np.flatnonzero(answered), decisions.label[answered]].all()
    assert ((decisions.p_audit >= 0) & (decisions.p_audit <= 1)).all()
    assert not np.isnan(decisions.threshold).any()
    return table.num_rows


def _damaged_text(source: Path, target: Path, rng: random.Random) -> None:
    """Lines left out, doubled and swapped, values replaced, bytes flipped."""
    lines = source.read_text().splitlines()
    at = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif kind == 2 and "=" in lines[at]:
        key = lines[at].partition("=")[0]
        values = ["1", "-1", "10000000000", '""', "[]", "{}", "nan", "inf", "9" * 5000, "[" * 3000, "true", '"\\ud800"']
        lines[at] = f"{key}= {rng.choice(values)}"
    elif kind == 3:
        lines[at] = ",".join(rng.sample(lines[at].split(","), len(lines[at].split(","))))
    else:
        target.write_bytes(mutated_bytes(source.read_bytes(), rng))
        return
    target.write_text("\n".join(lines) + "\n")


def _damaged_state(source: Path, target: Path, rng: random.Random) -> None:
    content = json.loads(source.read_text())
    state = mutated_json(content["state"], rng)
    digest = hashlib.sha256(canonical_json(state).encode()).hexdigest()
    target.write_text(canonical_json(content | {"state": state, "digest": digest}))


def _read_state(path: Path) -> object:
    watch = Watch.load(path)
    k = len(watch.classes)
    watch.observe("n", group="n", case=Case((0,), True, False, (0.5,) * k), distance=0.5)
    watch.review("n", label=0)
    Watch.from_state(watch.to_state())
    return watch.facts


def _damaged_json(source: Path, target: Path, rng: random.Random) -> None:
    if rng.random() < 0.2:
        target.write_bytes(mutated_bytes(source.read_bytes(), rng))
    else:
        target.write_text(json.dumps(mutated_json(json.loads(source.read_text()), rng)))


def _read_preprocessor(path: Path) -> object:
    steps = preprocessing_from(parsed_json(path.read_bytes(), source=path), source=str(path))
    assert np.isfinite(steps.mean).all()
    assert (np.array(steps.std) > 0).all()
    return steps


PREPROCESSOR = {
    "do_resize": True, "size": {"shortest_edge": 224}, "resample": 3, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
    "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "do_convert_rgb": True,
}  # fmt: skip
STUDY = """
title = "Made-up images"
seeds = [0, 1]
bootstrap_resamples = 50
[[backbones]]
name = "first"
features = "features.parquet"
[[settings]]
name = "HOME"
shifted = false
source = { site = "north" }
target = { role = "test" }
min_n = 5
[methods]
run = ["aps", "calcode"]
[resplits]
n = 3
[sensitivities]
trim = [0, 1]
"""


def make_victims(folder: Path) -> list[Victim]:
    """One file of each kind, undamaged, in a folder."""
    folder.mkdir(exist_ok=True)
    roles = WORLD.roles(n=80, named=True)
    variants: dict[str, dict[str, Any]] = {
        "home": {"audit": ("fused",), "protect": "all", "guard_miscoverage": {"c1": 0.2}},
        "home-exact": {"level": "exact", "bandwidth": 0.5, "class_local_min": 10, "n_neighbors": 3},
        "home-plain": {"audit": None, "level": "certified", "always_protect": ("c0",)},
    }
    victims = []
    models = {name: fit_quietly(Calcode(**settings), roles) for name, settings in variants.items()}
    for name, model in models.items():
        model.save(folder / f"{name}.safetensors")
        victims.append(Victim(name, folder / f"{name}.safetensors", _damaged_model, _read_model))
    sites: dict[str, dict[str, Any]] = {
        "site": {"sampling": "consecutive", "home_weight": 10, "ridge": 1, "miscoverage": {"c2": 0.1}},
        "site-assured": {"sampling": "archive", "assurance": 0.9, "miscoverage": 0.2},
        "site-weighted": {"sampling": "coin", "calibrate_with": "weighted", "home_weight": 10, "ridge": 1},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalcodeWarning)
        for name, settings in sites.items():
            site = SiteModel(models["home"], **settings)
            e = np.linspace(0.2, 1.0, 160) if name == "site-weighted" else None
            site.fit(reviewed=REVIEWED[:160], gate=REVIEWED[160:220], trainers=REVIEWED[220:], e=e)
            site.certify_singles(WORLD.draw(60, seed=79, shift=0.6), e=None if e is None else e[:60])
            site.save(folder / f"{name}.safetensors")
            victims.append(Victim(name, folder / f"{name}.safetensors", _damaged_model, _read_site))

    prompts = Prompts(text=np.random.default_rng(0).normal(size=(3, 5, 5)), temperature=0.1, classes=WORLD.classes)
    write_features(
        folder / "features.parquet",
        embeddings=roles["test"].embeddings,
        ids=roles["test"].ids,
        label_names=[f"c{label}" for label in roles["test"].labels],
        roles=["test"] * len(roles["test"]),
        groups=roles["test"].groups,
        metadata={"site": ["north"] * len(roles["test"])},
        prompts=prompts,
    )
    bank = folder / "features.prompts.safetensors"
    np.savez(folder / "prompts.npz", text=prompts.text, temperature=0.1, classes=np.array(WORLD.classes))
    decisions = models["home"].decide(IMAGES)
    watch = Watch(
        classes=("a", "b"), model_digest="m", gate=np.linspace(0, 1, 20), references={"a": [0.1, 0.5]},
        lines={"a": 0.1, "b": 0.2},
    )  # fmt: skip
    for i in range(8):
        watch.observe(f"i{i}", group=f"g{i}", case=Case((i % 2,), True, False, (0.25, 0.75)), distance=i / 6)
        watch.review(f"i{i}", label=[0, 1, None, -1][i % 4]) if i % 3 else None
    watch.save(folder / "state.json")
    (folder / "study.toml").write_text(STUDY)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    for kind in ("parquet", "csv"):
        write_decisions(folder / f"decisions.{kind}", decisions)
    return [
        *victims,
        Victim("prompts-npz", folder / "prompts.npz", _damaged_archive, _read_prompts),
        Victim("prompts", bank, _damaged_prompts, _read_prompts),
        Victim("features", folder / "features.parquet", _damaged_parquet, _read_features(bank)),
        Victim("decisions", folder / "decisions.parquet", _damaged_parquet, _read_decisions),
        Victim("decisions-csv", folder / "decisions.csv", _damaged_text, _read_decisions),
        Victim("study", folder / "study.toml", _damaged_text, read_study),
        Victim("preprocessor", folder / "preprocessor_config.json", _damaged_json, _read_preprocessor),
        Victim("monitor", folder / "state.json", _damaged_state, _read_state),
    ]
