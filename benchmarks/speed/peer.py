"""Times one peer; run by peers.py with the interpreter of the peers' environment.

python peer.py --child {torchcp|mapie|crepes} inputs.npz repeats
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "baselines")]

from peer_split import crepes_work, mapie_work, torchcp_work  # noqa: E402
from speed.measuring import interleaved, medians, peak_megabytes  # noqa: E402

WORKS = {"torchcp": torchcp_work, "mapie": mapie_work, "crepes": crepes_work}


def main() -> None:
    _, _, name, path, repeats = sys.argv
    with np.load(path) as stored:
        data = {key: stored[key] for key in stored.files}
    works = WORKS[name](data)
    # crepes takes seconds where the others take milliseconds.
    turns = min(int(repeats), 3) if name == "crepes" else int(repeats)
    seconds = medians(interleaved(works, repeats=turns))
    print(json.dumps({"seconds": seconds, "repeats": turns, "peak_megabytes": peak_megabytes()}))


if __name__ == "__main__":
    main()
