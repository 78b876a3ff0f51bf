"""Work that ends its process: for a worker that imports as little as it can."""

from __future__ import annotations

import os


def length_or_death(text: str) -> int:
    if text == "deadly":
        os._exit(9)
    return len(text)
