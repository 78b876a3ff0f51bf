"""Real parts of a hospital, started by the tests: Orthanc as the archive, dcmtk's tools as the modality."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydicom import Dataset
from service.dicom_objects import encoded
from service.sites import free_port, wait_until

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")


def require(*programs: str) -> None:
    """Skip where Debian's packages are missing, or fail where they must not be."""
    missing = [name for name in programs if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if not missing and ("Orthanc" not in programs or PLUGIN.exists()):
        return
    sentence = (
        f"{', '.join(missing) or PLUGIN}: not installed (apt-get install dcmtk dicom3tools orthanc orthanc-dicomweb)"
    )
    if os.environ.get("CALCODE_DICOM") == "required":
        pytest.fail(sentence)
    pytest.skip(sentence)


@dataclass
class Archive:
    """An Orthanc with DICOMweb; stopped as a crash stops it, and started again on the same folder."""

    folder: Path
    http: int
    dicom: int
    title: str = "ARCHIVE"

    def start(self) -> None:
        content = {
            "HttpPort": self.http,
            "DicomPort": self.dicom,
            "DicomAet": self.title,
            "DicomCheckCalledAet": True,
            "AuthenticationEnabled": False,
            "StorageDirectory": str(self.folder),
            "IndexDirectory": str(self.folder),
            "Plugins": [str(PLUGIN)],
            "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
            "SaveJobs": False,
        }
        settings = self.folder / "orthanc.json"
        settings.write_text(json.dumps(content))
        with (self.folder / "orthanc.log").open("a") as log:
            self._process = subprocess.Popen(["/usr/sbin/Orthanc", str(settings)], stdout=log, stderr=log)
        wait_until(self._answers)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            self.get("/system")
            return True
        return False

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.http}/dicom-web"

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def reports(self) -> list[dict[str, Any]]:
        """The structured reports that QIDO-RS finds, as DICOM JSON."""
        found: list[dict[str, Any]] = json.loads(self.get("/dicom-web/instances?Modality=SR") or b"[]")
        return found

    def report_files(self, folder: Path) -> list[Path]:
        """The same as files."""
        files = []
        for name in json.loads(self.get("/instances")):
            if json.loads(self.get(f"/instances/{name}/simplified-tags"))["Modality"] == "SR":
                files.append(folder / f"{name}.dcm")
                files[-1].write_bytes(self.get(f"/instances/{name}/file"))
        return files


@contextlib.contextmanager
def archive(folder: Path) -> Iterator[Archive]:
    require("Orthanc")
    folder.mkdir()
    started = Archive(folder=folder, http=free_port(), dicom=free_port())
    started.start()
    try:
        yield started
    finally:
        started.stop()


def send(
    port: int, *images: Dataset, folder: Path, called: str = "CALCODE", tls: tuple[str, ...] = ()
) -> tuple[int, str]:
    """`storescu` with some objects; its exit code and what it said."""
    require("storescu")
    files = []
    for place, image in enumerate(images):
        files.append(folder / f"sent-{place}.dcm")
        files[-1].write_bytes(encoded(image))
    titles = ("-aet", "CAMERA", "-aec", called)
    command = ["storescu", *tls, "-d", "-R", *titles, "127.0.0.1", str(port), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # In debug mode it says the status of each answer, among much else.
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if "DIMSE Status" in line or "Comment" in line or line[:2] in ("E:", "F:", "W:")]
    return done.returncode, "\n".join(said)


def echo(port: int, *, calling: str = "CAMERA", called: str = "CALCODE", tls: tuple[str, ...] = ()) -> int:
    """`echoscu`; 0 if the service answered."""
    require("echoscu")
    command = ["echoscu", *tls, "-aet", calling, "-aec", called, "127.0.0.1", str(port)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode
