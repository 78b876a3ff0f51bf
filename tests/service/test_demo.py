"""`calcode serve --demo`: up without configuration, a stream that is decided, and `curl` lines that work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from service.sites import ROOT, Site, free_port

from calcode.service.app import make_app
from calcode.service.demo_pages import demo_pages
from calcode.service.service import Service

pytest.importorskip("calcode_demo_data")


@pytest.mark.timeout(600)
def test_the_demonstration_plays_and_its_lines_work(tmp_path: Path) -> None:
    port = free_port()
    script = (
        "from calcode.service.demo import serve_demo; "
        f"serve_demo(port={port}, pace=50.0, say=lambda text: print(text, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    try:
        assert any("Open http" in line for line in process.stdout)
        end = time.monotonic() + 240
        while True:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/demo").read().decode()
            found = re.search(r"Records in the log</th><td>([\d,]+)", page)
            if found is not None and int(found[1].replace(",", "")) > 60:
                break
            assert time.monotonic() < end
            time.sleep(0.2)
        lines = [html.unescape(line) for line in re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)]
        assert len(lines) == 7
        if shutil.which("curl") is not None:
            decide, nonsense, log, *_ = lines
            shell = {"shell": True, "capture_output": True, "text": True, "check": True}
            answers = [json.loads(subprocess.run(decide, **shell).stdout) for _ in range(2)]
            assert answers[0]["action"] in ("label", "set", "defer")
            assert answers[0] == answers[1]
            assert json.loads(subprocess.run(nonsense, **shell).stdout)["status"] == 422
            assert json.loads(subprocess.run(log, **shell).stdout)[0]["kind"] == "started"
    finally:
        process.terminate()
        process.wait(timeout=120)
        process.stdout.close()
    assert not list(tmp_path.glob("calcode-demo-*"))


def test_the_page_of_the_demonstration_writes_large_numbers_as_other_pages_do(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Service(site.settings) as service:
        client = TestClient(
            make_app(service, more=[demo_pages({"port": 1, "token": "t"})]), base_url="http://127.0.0.1"
        )
        with monkeypatch.context() as patch:
            patch.setattr(service.log, "head", lambda: (4815, b""))
            page = client.get("/demo").text
    assert "Records in the log</th><td>4,815</td>" in page
