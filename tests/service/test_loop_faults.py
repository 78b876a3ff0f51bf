"""`kill -9` anywhere in the loop: reading, recalibrating, shadowing, promoting, closing alarms. Nothing is lost."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from service.hospital import Hospital, hospital_site, what_is_missing
from service.sites import Process
from service.test_faults import opened, wait_until

from calcode.service.service import Service

KILLS = int(os.environ.get("CALCODE_LOOP_KILLS", "3"))


@pytest.mark.timeout(600)
def test_killed_anywhere_in_the_loop_nothing_is_lost(tmp_path: Path, database_url: str | None) -> None:
    """`benchmarks/service/faults.py loop` does it a hundred times."""
    site = hospital_site(tmp_path, database=database_url)
    log = opened(site)
    process = Process(site)
    hospital = Hospital(log, process)
    chance = random.Random(11)
    kills = 0
    while kills < KILLS or not any(step == "promoted" for step, _ in hospital.done):
        process.start()
        hospital.start()
        target = hospital.acknowledged + chance.randint(10, 80)
        wait_until(lambda target=target: hospital.acknowledged >= target, 120)
        time.sleep(chance.random())
        process.kill()
        hospital.stop()
        kills += 1
        assert kills < KILLS + 40, hospital.done
    process.start()
    hospital.start()
    target = hospital.acknowledged + 20
    wait_until(lambda: hospital.acknowledged >= target and hospital.alarms, 120)
    hospital.stop()
    assert process.stop() == 0
    # What the last labels imply is raised at the next start, if there was no time for it.
    with Service(site.settings) as service:
        service.watch()
    missing = what_is_missing(site, log, hospital)
    assert missing == dict.fromkeys(missing, 0)
    assert hospital.read
    assert hospital.labelled
    assert hospital.alarms
    log.database.close()
