"""Make the small image tower of the demonstration from the float32 one, and measure what that changes.

    python demo-data/build_tower.py [folder with image_tower.onnx] [folder with sample images]

Weights are stored as 8-bit integers with one scale per output channel; `DequantizeLinear` turns them back into float32
when the file is loaded, so the arithmetic stays float32 and only the weights are rounded. Where rounding costs most per
byte saved, they are stored as float16 instead, as long as the file stays under the limit: the layers are chosen on
every second sample image, the others measure the result. Needs onnx and onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

HERE = Path(__file__).resolve().parent
FEATURES = HERE.parent.parent / "shared" / "features"
SOURCE = FEATURES / "lite0-derm"
SAMPLES = FEATURES / "samples"
TARGET = HERE / "src" / "calcode_demo_data" / "tower"
TOWER = "lite0-derm.onnx"
#: Weights with fewer numbers than this stay float32: biases and scalars.
SMALL = 1024
LIMIT_BYTES = 4_950_000


def build(source: Path, samples: Path, target: Path) -> dict[str, Any]:
    """Write the tower and the card of what rounding did to it; return the card."""
    target.mkdir(exist_ok=True)
    original = onnx.load(source / "image_tower.onnx")
    images = pixels_of(sorted(samples.glob("*.jpg")))
    half = costly_weights(original, images[::2])
    model, stored = rounded(original, half=half)
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString(deterministic=True)
    if len(content) > LIMIT_BYTES:
        raise SystemExit(f"{len(content)} bytes, {LIMIT_BYTES} allowed")
    (target / TOWER).write_bytes(content)
    card = {
        "made_from": {"file": "image_tower.onnx", "sha256": digest_of(source / "image_tower.onnx")},
        "file": {"name": TOWER, "bytes": len(content), "sha256": digest_of(target / TOWER)},
        "input": "RGB in [0, 1], NCHW float32, 224 x 224; the graph normalises",
        "stored": stored,
        "agreement_with_float32": agreement(source, embedded_by(original, images), embedded_by(model, images)),
    }
    (target / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    return card


def costly_weights(original: onnx.ModelProto, images: np.ndarray) -> frozenset[str]:
    """Names of the weights to keep as float16: most damage per byte first, until the limit is reached."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in original.graph.initializer if is_large(tensor)}
    expected = embedded_by(original, images)
    damage = {}
    for name in sizes:
        model, _ = rounded(original, half=frozenset(sizes) - {name})
        damage[name] = float((1 - (expected * embedded_by(model, images)).sum(axis=1)).mean())
    all_int8, _ = rounded(original, half=frozenset())
    room = LIMIT_BYTES - all_int8.ByteSize()
    chosen = []
    for name in sorted(sizes, key=lambda name: -damage[name] / sizes[name]):
        # float16 takes one byte per number more than int8.
        if sizes[name] <= room:
            chosen.append(name)
            room -= sizes[name]
    return frozenset(chosen)


def rounded(original: onnx.ModelProto, *, half: frozenset[str]) -> tuple[onnx.ModelProto, dict[str, int]]:
    """A copy with rounded weights and nodes that widen them, and how many numbers each type stores."""
    model = onnx.ModelProto()
    model.CopyFrom(original)
    stored = {"int8": 0, "float16": 0, "float32": 0}
    kept, widening = [], []
    for tensor in original.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if not is_large(tensor):
            stored["float32"] += values.size
            kept.append(tensor)
        elif tensor.name in half:
            stored["float16"] += values.size
            kept.append(numpy_helper.from_array(values.astype(np.float16), f"{tensor.name}.half"))
            widening.append(helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=onnx.TensorProto.FLOAT))
        else:
            stored["int8"] += values.size
            integers, scales = rounded_to_int8(values)
            inputs = [f"{tensor.name}.int8", f"{tensor.name}.scale"]
            kept += [numpy_helper.from_array(integers, inputs[0]), numpy_helper.from_array(scales, inputs[1])]
            widening.append(helper.make_node("DequantizeLinear", inputs, [tensor.name], axis=0))
    graph = model.graph
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend([*widening, *original.graph.node])
    return model, stored


def is_large(tensor: onnx.TensorProto) -> bool:
    """Whether rounding the weight saves anything."""
    return tensor.data_type == onnx.TensorProto.FLOAT and int(np.prod(tensor.dims)) >= SMALL


def rounded_to_int8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers in [-127, 127] and the scale of each output channel with the least squared error."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    largest = np.maximum(np.abs(rows).max(axis=1), 1e-12)
    best = np.full(len(rows), np.inf)
    scales = largest / 127
    # Clipping a few outliers can cost less than a coarser grid for all the others.
    for share in np.linspace(0.7, 1.0, 31):
        trial = share * largest / 127
        error = ((np.clip(np.round(rows / trial[:, None]), -127, 127) * trial[:, None] - rows) ** 2).sum(axis=1)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, trial, scales)
    integers = np.clip(np.round(rows / scales[:, None]), -127, 127).astype(np.int8)
    return integers.reshape(values.shape), scales.astype(np.float32)


def pixels_of(files: list[Path]) -> np.ndarray:
    """The images as the tower takes them, shape (n, 3, 224, 224)."""
    from PIL import Image

    pixels = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32) / np.float32(255)


def embedded_by(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    """Unit embeddings in float64, shape (n, d)."""
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = session.run(None, {"image": images})[0].astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def agreement(source: Path, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Cosines, top-1 labels and probabilities of both towers, on all samples and on those not chosen on."""
    from calcode.evidence import Evidence, robust_probabilities

    from calcode.cohorts import read_prompts

    prompts = read_prompts(source / "prompts.npz")
    bank = {"text": prompts.text, "temperature": prompts.temperature, "classes": prompts.classes}
    p_before, p_after = (
        robust_probabilities(Evidence.from_text(embeddings=rows, **bank).prompt_logits, trim=1)
        for rows in (before, after)
    )
    cosines = (before * after).sum(axis=1)
    same = p_before.argmax(axis=1) == p_after.argmax(axis=1)
    change = np.abs(p_before - p_after)
    return {
        name: {
            "images": len(cosines[rows]),
            "cosine_min": round(float(cosines[rows].min()), 6),
            "cosine_median": round(float(np.median(cosines[rows])), 6),
            "top1_same": int(same[rows].sum()),
            "largest_probability_change": round(float(change[rows].max()), 4),
            "mean_probability_change": round(float(change[rows].mean()), 5),
        }
        for name, rows in (("all_samples", slice(None)), ("samples_not_chosen_on", slice(1, None, 2)))
    }


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:3]]
    source, samples = [*folders, *[SOURCE, SAMPLES][len(folders) :]]
    sys.stdout.write(json.dumps(build(source, samples, TARGET), indent=1) + "\n")
