"""Decide on a feature file on a torch device: reading, copying, computing and writing overlap."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from calcode.arrays import BoolArray, IntArray
from calcode.cohorts import decisions_table
from calcode.cohorts.parquet import RowReader, stream_tables
from calcode.engines.device import DeviceDecider
from calcode.engines.local import DecideJob, naming
from calcode.kernels.device_hashes import LONGEST, DeviceHashes
from calcode.kernels.threads import available_cores
from calcode.method.decisions import Decisions
from calcode.method.evidence import NORM_TOLERANCE, Evidence
from calcode.method.model import Calcode
from calcode.method.roles import HASH_BYTES
from calcode.site import SiteModel

if TYPE_CHECKING:
    import pyarrow
    import torch

#: Fewest rows that are read and decided together, at first and later.
_FIRST_SPAN, _LARGEST_SPAN = 1 << 12, 1 << 15
#: Reading threads: more of them would wait for the GIL.
_READERS = 8
#: Threads that feed the device: while one waits for an answer, the other has already queued its next kernels.
_DECIDERS = 2
#: Seconds after which a thread releases the GIL. With the default (5 ms) the thread that feeds the device would wait
#: too long for the others.
_SWITCH_INTERVAL = 1e-4
#: Rows whose ids are hashed together: a device takes as long for a few rows.
_HASHED_ROWS = 1 << 18
#: Columns of the feature file that identify an image, by their names in `identities`.
_WHO = {"ids": "id", "groups": "group"}


@dataclass(frozen=True, eq=False, kw_only=True)
class RawBlock:
    """The chosen images of a block in the form stored in the file.

    Attributes
    ----------
    rows : pyarrow.Table
        With the columns `id`, `embedding`, and `group` and `review_probability` if the file has them.
    embeddings : tensor of float16 or float32, shape (n, d)
        On the host, in memory from which the device can copy while it computes.
    known : (ndarray of int, ndarray of bool) or None
        Rows and mask of known patients for a site model (`KnownGroups.find`).
    """

    rows: pyarrow.Table
    embeddings: torch.Tensor
    known: tuple[IntArray, BoolArray] | None


class DeviceBlocks:
    """A model on a device and a feature file, with the stages of a pipeline like those of `BlockDecider`.

    Parameters
    ----------
    job : DecideJob
        With a device.
    """

    def __init__(self, job: DecideJob) -> None:
        import torch

        assert job.device is not None
        assert job.model is not None
        self._job = job
        self.model = job.model
        # Started first, because it takes a while and nothing is written before all images are known to be new.
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="calcode-identities")
        self._checked = (
            [] if isinstance(self.model, SiteModel) else [self._checking.submit(require_new_images, job, self.model)]
        )
        self._decider = DeviceDecider(self.model, device=job.device)
        self._device = torch.device(job.device)
        chosen = [job.features.classes.index(name) for name in self.model.classes_]
        text = torch.tensor(job.features.prompts.text[chosen], dtype=torch.float64, device=self._device)
        self._text = text / torch.linalg.vector_norm(text, dim=2, keepdim=True)
        if self._device.type == "cuda":
            # The deciding threads have their own streams, which do not wait for the work started here.
            torch.cuda.synchronize(self._device)
        self._thread = local()
        self._opened: list[RowReader] = []
        with closing(RowReader(job.features_path, columns=job.columns)) as reader:
            ranges, start = [], 0
            for stop in reader.first_rows[1:].tolist():
                # Whole row groups, only few at first, so that the device soon has work.
                if stop - start >= min(_LARGEST_SPAN, max(_FIRST_SPAN, start // _READERS)) or stop == reader.n_rows:
                    ranges.append(range(start, stop))
                    start = stop
            # The format is checked only on the first row: all rows come from the same file.
            first = self._evidence(reader.table(0, 1))
            self.model.evidence_format_.require(first, role="evidence")
        self.ranges = tuple(rows for rows in ranges if rows)
        self.stages: tuple[tuple[Callable[[Any], Any], int], ...] = (
            (self.read, min(_READERS, available_cores())),
            (self.decide, _DECIDERS),
            (self.table, 1),
        )
        self._usual_interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL)

    def close(self) -> None:
        """Close the feature file for every thread that read it."""
        sys.setswitchinterval(self._usual_interval)
        self._checking.shutdown()
        for reader in self._opened:
            reader.close()

    def read(self, rows: range) -> RawBlock | None:
        """The chosen rows of this range; None if no row is chosen."""
        import torch

        if not hasattr(self._thread, "reader"):
            self._thread.reader = RowReader(self._job.features_path, columns=self._job.columns)
            self._opened.append(self._thread.reader)
        table = self._thread.reader.table(rows.start, rows.stop)
        chosen = self._job.features.chosen_rows(table, role=self._job.role, where=self._job.where)
        if chosen.num_rows == 0:
            return None
        known = None
        if isinstance(self.model, SiteModel):
            names = {
                kind: [value or "" for value in chosen[column].to_pylist()]
                for kind, column in _WHO.items()
                if column in chosen.column_names
            }
            known = self.model.known_.find(chosen.num_rows, ids=names["ids"], groups=names.get("groups"))
        stored = self._job.features.stored_embeddings(chosen)
        kind = torch.float16 if stored.dtype == np.float16 else torch.float32
        embeddings = torch.empty(stored.shape, dtype=kind, pin_memory=self._device.type == "cuda")
        embeddings.numpy()[...] = stored
        return RawBlock(rows=chosen, embeddings=embeddings, known=known)

    def decide(self, block: RawBlock | None) -> tuple[Decisions, pyarrow.Table] | None:
        """Decisions on a block, and its rows."""
        import torch

        if block is None:
            return None
        if self._device.type == "cuda" and not hasattr(self._thread, "stream"):
            self._thread.stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(getattr(self._thread, "stream", None)):
            return self._decided(block), block.rows

    def _decided(self, block: RawBlock) -> Decisions:
        import torch

        raw = block.embeddings.to(self._device, non_blocking=True)
        lengths = torch.linalg.vector_norm(raw.to(torch.float64), dim=1)
        if not bool(((lengths - 1.0).abs() <= NORM_TOLERANCE).all()):
            # NaN, zeros and rows that are not of unit length: making the evidence names them, in an error or a warning.
            self._evidence(block.rows)
        with naming(self._job.features.path):
            answers = self._decider.answers_from_text(
                raw,
                self._text,
                self._job.features.prompts.temperature,
                block.rows["review_probability"].to_numpy() if "review_probability" in self._job.columns else None,
            )
        return self._decider.decisions(
            answers, ids=None, settle=lambda at: self._evidence(block.rows.take(at)), known=block.known
        )

    def table(self, decided: tuple[Decisions, pyarrow.Table] | None) -> pyarrow.Table | None:
        """The decisions of a block as a table with the ids of its rows."""
        if decided is None:
            return None
        # Nothing is written before all images are known to be new; until then the device need not wait.
        for checked in self._checked:
            checked.result()
        decisions, rows = decided
        return decisions_table(decisions, ids=rows["id"])

    def _evidence(self, rows: pyarrow.Table) -> Evidence:
        return self._job.features.evidence_from(rows, classes=self.model.classes_)


def require_new_images(job: DecideJob, model: Calcode) -> None:
    """Raise `RoleError` if an image or group of a job had a role in the fit of its home model (METHOD.md 1).

    The device hashes all texts and finds those whose hash begins like a hash of the fit. The model itself checks these
    texts, and texts too long for the device, and names them in its error.

    Parameters
    ----------
    job : DecideJob
        With a device.
    model : Calcode
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import torch

    assert job.device is not None
    roles = model.role_hashes_
    hashes = DeviceHashes(roles.key, digest_size=HASH_BYTES, device=job.device)
    in_fit = {kind: torch.tensor(words, device=job.device) for kind, words in roles.first_words().items()}
    columns = [name for name in job.columns if name != "embedding"]
    for table in stream_tables(job.features_path, columns=columns, batch_size=_HASHED_ROWS):
        chosen = job.features.chosen_rows(table, role=job.role, where=job.where)
        suspects: dict[str, set[str]] = {}
        for kind, column in _WHO.items():
            if kind not in in_fit or column not in columns or chosen.num_rows == 0:
                continue
            texts = chosen[column].cast(pa.string()).combine_chunks()
            lengths = pc.binary_length(texts)
            suspects[kind] = set(texts.filter(pc.greater(lengths, LONGEST)).to_pylist())
            texts = texts.filter(pc.and_(pc.greater(lengths, 0), pc.less_equal(lengths, LONGEST)))
            if len(texts):
                found = torch.isin(hashes.first_words(texts), in_fit[kind]).cpu()
                suspects[kind].update(texts.filter(pa.array(found.numpy())).to_pylist())
        with naming(job.features.path):
            roles.require_new("evidence", suspects)
