"""The text bank of a frozen image-text model and its file (METHOD.md 1)."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calcode.errors import CalcodeError, EvidenceError, FeatureFileError
from calcode.files import canonical_json, parsed_json, replacing, require_regular, require_small_archive
from calcode.method.artifact import PROMPTS_KEY, has_type
from calcode.method.evidence import checked_classes, checked_temperature

#: Suffix of a prompt file: the prompts of `derm.parquet` are in `derm.prompts.safetensors`.
PROMPTS_SUFFIX = ".prompts.safetensors"
_VERSION = 1
#: Entries of the metadata by name and type; a JSON number may be an integer.
_FACTS = {
    "version": int,
    "classes": tuple[Any, ...],
    "templates": tuple[Any, ...],
    "label_texts": tuple[Any, ...],
    "temperature": int | float,
    "shape": tuple[int, ...],
    "digest": str,
}
#: Exceptions that reading a damaged archive raises.
_DAMAGE = (BadZipFile, zlib.error, OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError)
#: File name of the older layout, one archive per folder.
_ARCHIVE_NAME = "prompts.npz"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Prompts:
    """Prompt embeddings of K classes with M prompts each, and the temperature of the logits.

    Parameters
    ----------
    text : array_like of shape (K, M, d)
        One embedding per class and prompt, kept as float32: classes first, then prompts.
    temperature : float
        logit = cosine / temperature.
    classes : sequence of str
        The K class names.
    templates : sequence of str, optional
        The M prompt templates, for information.
    label_texts : sequence of str, optional
        The texts that filled the templates for each of the K classes, for information.

    Attributes
    ----------
    digest : str
        `prompt_digest` of everything that the logits depend on; a fitted model refuses evidence with another digest.
    largest_odds : float
        For any image, no class can be more than this many times as likely as another.

    Examples
    --------
    >>> Prompts(text=np.eye(3)[:, None, :], temperature=0.1, classes=["a", "b", "c"])
    Prompts(3 classes [a, b, c] x 1 prompt x 3 dimensions; temperature 0.1; digest 08049b517425)
    """

    text: NDArray[np.float32]
    temperature: float
    classes: tuple[str, ...]
    templates: tuple[str, ...] = ()
    label_texts: tuple[str, ...] = ()
    digest: str = field(init=False)
    largest_odds: float = field(init=False)

    def __init__(
        self,
        *,
        text: ArrayLike,
        temperature: float,
        classes: Sequence[str],
        templates: Sequence[str] = (),
        label_texts: Sequence[str] = (),
    ) -> None:
        names = checked_classes(classes)
        try:
            bank = np.array(text, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise EvidenceError(f"text: not an array of numbers ({error})") from error
        if bank.ndim != 3 or bank.shape[0] != len(names) or 0 in bank.shape:
            raise EvidenceError(
                f"text: shape {bank.shape} is not (classes, prompts, dimensions) = ({len(names)}, M, d)"
            )
        if not np.isfinite(bank).all():
            raise EvidenceError("text: NaN or infinity among the prompt embeddings")
        empty = np.argwhere(~bank.any(axis=2))
        if len(empty):
            raise EvidenceError(
                f"text: prompt {empty[0][1]} of class {names[empty[0][0]]!r} is a vector of length zero"
            )
        bank.flags.writeable = False
        number = checked_temperature(temperature)
        unit = bank / np.linalg.norm(bank, axis=2, keepdims=True)
        # Cosines of an image with two prompts differ by at most their distance, at most twice that to their mean.
        apart = 2 * float(np.linalg.norm(unit - unit.mean(axis=0), axis=2).max())
        values: dict[str, Any] = {
            "text": bank,
            "temperature": number,
            "classes": names,
            "templates": tuple(str(text) for text in templates),
            "label_texts": tuple(str(text) for text in label_texts),
            "digest": prompt_digest(text=bank, temperature=number, classes=names),
            "largest_odds": float(np.exp(min(apart / number, 700.0))),
        }
        for name, count, noun in (("templates", bank.shape[1], "prompts"), ("label_texts", len(names), "classes")):
            if len(values[name]) not in (0, count):
                raise EvidenceError(f"{name}: {len(values[name])} given for {count} {noun}; give one for each, or none")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        k, m, d = self.text.shape
        names = ", ".join(self.classes[:8]) + (", ..." if k > 8 else "")
        return (
            f"Prompts({k} classes [{names}] x {m} prompt{'s' * (m != 1)} x {d} dimensions; "
            f"temperature {self.temperature:.6g}; digest {self.digest[:12]})"
        )

    @property
    def dimension(self) -> int:
        """Length d of a prompt embedding, equal to that of an image embedding."""
        return int(self.text.shape[2])

    @property
    def titles(self) -> dict[str, str]:
        """Full names of the classes; the names themselves if nothing else is known."""
        return dict(zip(self.classes, self.label_texts or self.classes, strict=True))

    @property
    def n_prompts(self) -> int:
        """Number M of prompts per class."""
        return int(self.text.shape[1])


def prompt_digest(*, text: NDArray[np.float32], temperature: float, classes: Sequence[str]) -> str:
    """SHA-256, in hex, of everything that the logits depend on: class names, shape, temperature, float32 bytes.

    Parameters
    ----------
    text : ndarray of float32, shape (K, M, d)
    temperature : float
    classes : sequence of str
        In the order of the first axis of `text`.

    Examples
    --------
    >>> bank = np.ones((2, 1, 1), dtype=np.float32)
    >>> one = prompt_digest(text=bank, temperature=0.1, classes=["a", "b"])
    >>> one == prompt_digest(text=bank, temperature=0.1, classes=["b", "a"])
    False
    """
    head = {
        "classes": list(classes),
        "dtype": "float32",
        "shape": list(text.shape),
        "temperature": repr(float(temperature)),
    }
    digest = hashlib.sha256(canonical_json(head).encode())
    digest.update(np.ascontiguousarray(text, dtype="<f4").tobytes())
    return digest.hexdigest()


def write_prompts(path: str | os.PathLike[str], prompts: Prompts) -> None:
    """Write `*.prompts.safetensors`; the same prompts give the same bytes."""
    if not str(path).endswith(PROMPTS_SUFFIX):
        raise FeatureFileError(f"{path}: the name must end in {PROMPTS_SUFFIX}")
    with replacing(path) as temporary:
        temporary.write_bytes(prompt_bytes(prompts))


def prompt_bytes(prompts: Prompts) -> bytes:
    """The content of a prompt file."""
    from safetensors.numpy import save

    named = ("classes", "templates", "label_texts", "temperature", "digest")
    facts = {name: getattr(prompts, name) for name in named} | {"version": _VERSION, "shape": prompts.text.shape}
    tensors = {"text": np.ascontiguousarray(prompts.text)}
    content: bytes = save(tensors, metadata={PROMPTS_KEY: canonical_json(facts)})
    return content


def read_prompts(path: str | os.PathLike[str]) -> Prompts:
    """Read `*.prompts.safetensors`, or the older `prompts.npz`.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    FeatureFileError
        If the file is missing, truncated, of another program, newer than this version, or does not match its digest.
    """
    from safetensors import SafetensorError, safe_open

    file = require_regular(path)
    if file.suffix not in {".safetensors", ".npz"}:
        raise FeatureFileError(f"{file}: prompts are read from .safetensors or .npz, not from {file.suffix!r}")
    try:
        if file.suffix == ".npz":
            return _from_archive(file)
        with safe_open(str(file), framework="numpy") as content:
            metadata = content.metadata() or {}
            text = content.get_tensor("text") if "text" in content.keys() else None  # noqa: SIM118
        if PROMPTS_KEY not in metadata or text is None:
            raise FeatureFileError(
                f"{file}: a safetensors file, but not of prompts (needs the tensor 'text' and "
                f"the metadata key {PROMPTS_KEY!r}); write it with write_prompts"
            )
        facts = parsed_json(metadata[PROMPTS_KEY], source=f"{file}: its metadata")
        found = facts if isinstance(facts, dict) else {}
        wrong = [name for name, kind in _FACTS.items() if not has_type(found.get(name), kind)]
        if "version" not in wrong and found["version"] > _VERSION:
            raise FeatureFileError(
                f"{file}: written in version {found['version']} of the prompt format and this is version "
                f"{_VERSION}; install a newer calcode"
            )
        if wrong:
            raise FeatureFileError(f"{file}: its metadata lack {wrong}, or hold another type there")
        if text.dtype != np.float32 or list(text.shape) != found["shape"]:
            raise FeatureFileError(
                f"{file}: text is {text.dtype} of shape {text.shape}, its metadata say float32 of {found['shape']}"
            )
        prompts = Prompts(
            text=text, **{name: found[name] for name in ("temperature", "classes", "templates", "label_texts")}
        )
        if prompts.digest != found["digest"]:
            raise FeatureFileError(
                f"{file}: altered since it was written (digest {prompts.digest[:12]}, recorded "
                f"{found['digest'][:12]}); take the original file or write the prompts again"
            )
        return prompts
    except FeatureFileError:
        raise
    except CalcodeError as error:
        raise FeatureFileError(f"{file}: {error}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise FeatureFileError(f"{file}: truncated, or not a safetensors file ({error}); take the original") from error


def prompt_file_for(path: str | os.PathLike[str]) -> Path:
    """The prompt file that belongs to a feature file: `<stem>.prompts.safetensors`, else `prompts.npz`."""
    file = Path(path)
    candidates = [file.with_name(file.stem + PROMPTS_SUFFIX), file.with_name(_ARCHIVE_NAME)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FeatureFileError(
        f"{file}: no prompts next to it (looked for {candidates[0].name} and {candidates[1].name}); "
        "'calcode embed' writes both files; otherwise name the prompt file (--prompts, or prompts= in Python), which "
        "write_prompts makes of your model's text embeddings"
    )


def _from_archive(file: Path) -> Prompts:
    require_small_archive(file)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            content = {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise FeatureFileError(f"{file}: truncated, or not a NumPy archive ({error})") from error
    foreign = [name for name, value in content.items() if not isinstance(value, np.ndarray)]
    if foreign:
        raise FeatureFileError(f"{file}: {foreign[:5]} are not NumPy arrays; this is not an archive of prompts")
    missing = [name for name in ("text", "temperature", "classes") if name not in content]
    if missing:
        raise FeatureFileError(f"{file}: lacks the arrays {missing}; it holds {sorted(content)}")
    if content["temperature"].size != 1:
        raise FeatureFileError(f"{file}: temperature has shape {content['temperature'].shape}, one number needed")
    return Prompts(
        text=content["text"],
        temperature=content["temperature"].item(),
        classes=content["classes"].tolist(),
        templates=content["templates"].tolist() if "templates" in content else (),
        label_texts=content["label_texts"].tolist() if "label_texts" in content else (),
    )
