from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import all_end, descendants
from study.made_up import write_study, write_world

from calcode.study.decisions import method_job
from calcode.study.run import plan, run_study
from calcode.study.specification import Condition
from calcode.study.study_file import read_study

SMALL = ("main-comparison", "ablations")
MAIN = "from calcode.cli import main; main()"


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every CSV and Parquet file of an output folder, the manifest without its durations."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".csv", ".parquet")
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["durations"], manifest["hardware"], manifest["study"]["output"]
    found["manifest.json"] = json.dumps(manifest).encode()
    return found


def test_a_whole_study_ends_without_a_failure(finished) -> None:
    assert finished.run.failures == ()
    assert finished.run.n_reused == 0
    assert finished.run.n_jobs == len(plan(finished.study))


def test_a_finished_study_repeats_nothing_and_changes_no_byte(tmp_path) -> None:
    study = read_study(write_study(tmp_path, experiments=SMALL, methods=("aps", "calcode")))
    run_study(study, workers=2)
    before = bytes_of(Path(study.output))
    again = run_study(study, workers=1)
    assert again.n_reused == again.n_jobs
    assert bytes_of(Path(study.output)) == before


def test_work_that_was_cut_off_is_done_again_and_work_that_was_altered_is_named(tmp_path) -> None:
    study = read_study(write_study(tmp_path, experiments=("main-comparison",), methods=("aps", "calcode")))
    run_study(study, workers=1)
    before = bytes_of(Path(study.output))
    file = sorted((Path(study.output) / "work").rglob("*.parquet"))[0]
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    again = run_study(study, workers=1)
    assert again.n_jobs - again.n_reused == 1
    assert bytes_of(Path(study.output)) == before
    # The end of a Parquet file says how to read the rest, and how long it is itself; it stays whole.
    end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    file.write_bytes(b"\xff" * end + whole[end:])
    (failure,) = run_study(study, workers=1).failures
    assert re.search(f"{file.name}: damaged .*remove it and run the study again", failure.error)
    file.unlink()
    run_study(study, workers=1)
    assert bytes_of(Path(study.output)) == before


def test_two_runs_give_the_same_bytes(tmp_path) -> None:
    path = write_study(tmp_path, experiments=("main-comparison", "geometry", "sensitivity", "paired-bootstrap"))
    outputs = []
    for name, workers in (("one", 1), ("two", 2)):
        study = read_study(path, output=tmp_path / name)
        assert run_study(study, workers=workers).failures == ()
        outputs.append(bytes_of(Path(study.output)))
    assert outputs[0] == outputs[1]


def test_a_killed_run_goes_on_where_it_stopped(tmp_path) -> None:
    path = write_study(tmp_path, experiments=SMALL)
    whole = read_study(path, output=tmp_path / "whole")
    run_study(whole, workers=2)

    killed = read_study(path, output=tmp_path / "killed")
    script = (
        "import sys, time; from pathlib import Path; from calcode.study.run import run_study\n"
        "from calcode.study.study_file import read_study\n"
        "steps = []\n"
        "def step(name):\n"
        "    steps.append(name)\n"
        "    print(name, flush=True)\n"
        "    time.sleep(300 if len(steps) == 4 else 0)\n"
        "if __name__ == '__main__':\n"
        "    study = read_study(Path(sys.argv[1]), output=Path(sys.argv[2]))\n"
        "    run_study(study, workers=2, on_step=step)\n"
    )
    runner = tmp_path / "run.py"
    runner.write_text(script)
    with subprocess.Popen(
        [sys.executable, str(runner), str(path), killed.output], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline()
        workers = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    # The workers notice that the parent is gone; a file they are just renaming is whole.
    assert all_end(workers)
    finished = {file: file.stat().st_mtime_ns for file in Path(killed.output).rglob("*.parquet")}
    assert 4 <= len(finished) < len(plan(killed))
    resumed = run_study(killed, workers=2)
    assert resumed.n_reused == len(finished)
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert bytes_of(Path(killed.output)) == bytes_of(Path(whole.output))


def test_ctrl_c_leaves_whole_files_alone(tmp_path) -> None:
    # Far more work than a quick machine finishes between the first files and the signal.
    path = write_study(tmp_path, experiments=(*SMALL, "resplits"), resplits=200)
    # Whoever runs the tests in the background has Ctrl-C ignored for all that they start.
    heeding = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{MAIN}"
    command = [sys.executable, "-c", heeding, "study", "run", str(path), "--workers", "2"]
    folder = Path(read_study(path).output)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            while process.poll() is None and len(list(folder.rglob("*.parquet"))) < 3:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, told = process.communicate(timeout=180)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert [entry for entry in folder.rglob("*") if entry.name.endswith(".part")] == []
    assert not (folder / "manifest.json").exists()


def test_one_failing_combination_is_reported_and_the_rest_goes_on(tmp_path) -> None:
    path = write_study(tmp_path, experiments=SMALL, methods=("aps", "calcode"))
    study = read_study(path)
    # A second backbone whose rows lack the target of AWAY: that setting cannot be made there.
    nowhere = (Condition(column="dataset", values=("x",)),)
    broken = study.settings[1].model_copy(update={"name": "BROKEN", "target": nowhere})
    study = study.model_copy(update={"settings": (*study.settings, broken)})
    outcome = run_study(study, workers=2)
    assert {failure.what for failure in outcome.failures} == {
        f"BROKEN.{backbone}.{what}" for backbone in ("first", "second") for what in ("aps", "calcode", "ablations")
    }
    assert all("no image meets" in failure.error for failure in outcome.failures)
    manifest = json.loads((outcome.folder / "manifest.json").read_text())
    assert len(manifest["failures"]) == len(outcome.failures)
    summary = (outcome.folder / "tables" / "recent_baselines_summary.csv").read_text().splitlines()
    assert len(summary) == 1 + 3 * 2 * 2  # the three good settings, two backbones, two methods


def test_a_worker_that_dies_takes_no_other_job_with_it(tmp_path) -> None:
    from calcode.study.jobs import job
    from calcode.study.pool import run_jobs

    study = read_study(write_study(tmp_path))
    place = study.combinations()[0]
    deadly = job("study_deadly_runner:die", "deadly", place)
    good = method_job(study, "aps", place)
    module = tmp_path / "study_deadly_runner.py"
    module.write_text("import os\ndef die(cohorts, options):\n    os._exit(9)\n")
    ended = {}
    sys.path.insert(0, str(tmp_path))
    try:
        run_jobs([deadly, good], folder=tmp_path / "out", workers=2, on_finish=lambda j, f: ended.update({j.what: f}))
    finally:
        sys.path.remove(str(tmp_path))
    assert ended["aps"].error is None
    assert "WorkerDied" in ended["deadly"].error


def test_a_key_follows_the_features_and_the_settings_but_not_the_titles(tmp_path) -> None:
    path = write_study(tmp_path)
    study = read_study(path)
    setting, backbone = study.combinations()[0]

    def key(place, model) -> str:
        return method_job(study, "aps", (place, model)).key

    first = key(setting, backbone)
    assert key(setting.model_copy(update={"title": "Another title"}), backbone) == first
    assert key(setting.model_copy(update={"classes": ("c0", "c1")}), backbone) != first
    assert method_job(study, "aps", (setting, backbone), seed=1).key != first
    assert method_job(study, "lac", (setting, backbone)).key != first
    write_world(tmp_path / "first.parquet", seed=7)
    changed = read_study(path)
    assert key(setting, changed.backbones[0]) != first


def test_only_tables_of_experiments_that_ran_are_written(tmp_path) -> None:
    path = write_study(tmp_path, experiments=("geometry",), methods=("aps", "calcode"))
    first = run_study(read_study(path), workers=2)
    names = {path.stem for path in (first.folder / "tables").glob("*.csv")}
    assert names == {"geometry_summary", "distance_quantiles", "pca_domain_projection"}
    path.write_text(path.read_text().replace('["geometry"]', '["audit-stability"]'))
    second = run_study(read_study(path), workers=2)
    assert {path.stem for path in (second.folder / "tables").glob("*.csv")} == {"audit_score_stability"}
    described = json.loads((second.folder / "tables" / "schemas.json").read_text())
    assert set(described) == {"audit_score_stability.csv"}


def test_work_that_experiments_share_is_planned_once(tmp_path) -> None:
    study = read_study(write_study(tmp_path))
    jobs = plan(study)
    assert len({job.key for job in jobs}) == len(jobs)
    assert len({job.path(Path(study.output)) for job in jobs}) == len(jobs)


def test_the_manifest_says_what_went_in(finished) -> None:
    manifest = json.loads((finished.folder / "manifest.json").read_text())
    digests = {
        entry["name"]: next(iter(entry["features"].values()))["digest"] for entry in manifest["study"]["backbones"]
    }
    assert {len(digest) for digest in digests.values()} == {64}
    assert digests["first"] != digests["second"]
    assert manifest["study"]["operating_points"][0]["miscoverage"] == 0.05
    assert {"numpy", "scipy", "scikit-learn", "pandas"} <= set(manifest["libraries"])
    assert manifest["hardware"]["cores"] >= 1
    assert manifest["commit"] is None or len(manifest["commit"]) >= 7
    assert len(manifest["durations"]["combinations"]) == len(manifest["combinations"])
    for entry in manifest["combinations"]:
        assert (finished.folder / entry["file"]).is_file()


@pytest.mark.parametrize("name", ["calcode", "aps"])
def test_every_method_leaves_its_decisions(finished, name) -> None:
    import pyarrow.parquet as pq

    files = list((finished.folder / "work" / "decisions").glob(f"HOME.first.{name}.*.parquet"))
    given = [file for file in files if "split-" not in file.name]
    assert len(given) == 1
    table = pq.read_table(given[0])
    assert table.column_names == [
        "variant",
        "id",
        "label",
        "set",
        "accepted",
        "deferred",
        "p_value",
        "top_label",
        "top_probability",
    ]
    assert table.num_rows == 110
    assert (table["p_value"].null_count == 110) is (name == "aps")
