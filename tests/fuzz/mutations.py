"""Seeded damage that knows what it damages: JSON values, tensors, tables, TOML and bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

#: What stands where something else should.
WRONG: list[Any] = [
    None, True, False, -1, 0, 1, 2, 99, 2**27, 2**63, 10**400, 0.0, 0.3, 0.5, -0.5, 1.5, 5e-324, 1e308, "", "x",
    "bogus", "c0", "ab" * 32, "=1+1", "\u0000", {"number": "nan"}, {"number": "inf"}, {"number": "-inf"},
    {"number": "seven"}, {"number": []}, [], [0], [None], ["c0", "c0"], {}, {"n": 1}, [[[[]]]],
]  # fmt: skip


def deep(levels: int = 900) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values, those inside others included."""
    if path:
        yield path
    if len(path) > 20:
        return
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from places(entry, (*path, key))


def other_number(value: float, rng: random.Random) -> Any:
    """A number near another one, or of the same kind."""
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, value * 2, -value, float(value)])
    return rng.choice([value * (1 + 1e-9), value * 1.01, value / 2, 1 - value, -value, value + 1])


def mutated_json(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere: another value, a value left out, a value from elsewhere, a new key."""
    value = json.loads(json.dumps(value))  # copies deeper values than copy.deepcopy can
    everywhere = list(places(value))
    path = rng.choice(everywhere)
    target = value
    for step in path[:-1]:
        target = target[step]
    old = target[path[-1]]
    kind = rng.random()
    if kind < 0.15:
        del target[path[-1]]
    elif kind < 0.4 and type(old) in (int, float):
        target[path[-1]] = other_number(old, rng)
    elif kind < 0.5:
        other: Any = value
        for step in rng.choice(everywhere):
            other = other[step] if not isinstance(other, dict) or step in other else other
        target[path[-1]] = json.loads(json.dumps(other))
    elif kind < 0.55 and isinstance(target, dict):
        target[rng.choice(["extra", "n", "digest", "\u2028"])] = rng.choice(WRONG)
    elif kind < 0.57:
        target[path[-1]] = deep()
    else:
        target[path[-1]] = copy.deepcopy(rng.choice(WRONG))
    return value


def mutated_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """The array with other numbers, another order, another shape or another type."""
    changed = array.copy()
    generator = np.random.default_rng(rng.getrandbits(32))
    kind = rng.randrange(12)
    if kind <= 3 and changed.size:
        wrong = [np.nan, np.inf, -np.inf, -1.0, 0.0, 2.0, 99.0, 1e300, 5e-324]
        with np.errstate(all="ignore"):
            changed.flat[rng.randrange(changed.size)] = np.array(rng.choice(wrong)).astype(changed.dtype)
    elif kind == 4:
        changed = changed[::-1]
    elif kind == 5:
        changed = generator.permutation(changed, axis=0)
    elif kind == 6:
        changed = changed[: len(changed) // 2]
    elif kind == 7:
        changed = np.concatenate([changed, changed])
    elif kind == 8:
        changed = changed.astype(rng.choice(["<f4", "<i8", "<i4", "|u1", "|b1", "<f2"]))
    elif kind == 9:
        changed = changed.reshape(-1) if changed.ndim > 1 else changed[:, None]
    elif kind == 10 and changed.dtype.kind == "f":
        changed = changed * rng.choice([1000.0, -1.0, 0.5, 1 + 1e-12])
    elif changed.size > 1:
        one, other = rng.randrange(changed.size), rng.randrange(changed.size)
        changed.flat[one], changed.flat[other] = changed.flat[other], changed.flat[one]
    return changed


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """The bytes with some flipped, cut off, repeated or replaced."""
    changed = bytearray(content)
    kind = rng.randrange(4)
    at = rng.randrange(len(changed))
    if kind == 0:
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        changed[at:at] = changed[at : at + rng.randint(1, 64)]
    else:
        changed[at : at + 8] = rng.choice([b"\xff" * 8, b"\x00" * 8, b"\xed\xa0\x80", b"[" * 5000, b"9" * 5000])
    return bytes(changed)


def mutated_table(table: pa.Table, rng: random.Random) -> pa.Table:
    """The table with one value, one column, some rows or a piece of its metadata changed."""
    kind = rng.randrange(7)
    index = rng.randrange(table.num_columns)
    field = table.schema.field(index)
    if kind == 0:
        return table.remove_column(index)
    if kind == 1:
        return table.rename_columns(rng.sample(table.column_names, table.num_columns))
    if kind == 2:
        row = rng.randrange(table.num_rows)
        return pa.concat_tables([table, table.slice(row, 1)])
    if kind == 3:
        metadata = dict(table.schema.metadata or {})
        key = rng.choice([*metadata, b"extra"])
        content = mutated_bytes(metadata.get(key, b"[1]") or b"[]", rng)
        return table.replace_schema_metadata(metadata | {key: content})
    values = table.column(index).to_pylist()
    row = rng.randrange(len(values))
    values[row] = rng.choice(
        [None, "", "x", "=1", -1, 7, 7.0, float("nan"), float("inf"), [], ["c0", "c0"], values[row - 1], True]
    )
    try:
        if kind == 4:
            column: Any = pa.array(values, type=field.type)
        else:
            column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = pa.nulls(len(values), type=field.type)
    return table.set_column(index, field.with_type(column.type), column)
