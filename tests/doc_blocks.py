"""The fenced code blocks of a Markdown page, in order, with the line where each begins."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block; `line` is the line of its first line of code, counted from 1."""

    language: str
    body: str
    line: int
    end: int


def fenced_blocks(text: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    blocks = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("body")) + 1
        blocks.append(Block(language=match["language"], body=body, line=line, end=match.end()))
    return blocks


@dataclass(frozen=True, kw_only=True)
class Step:
    """A block of Python and, when a block of text follows at once, what it must print."""

    code: str
    line: int
    printed: str | None


def python_steps(text: str) -> list[Step]:
    """The Python blocks of a page, each with the output the page shows for it."""
    blocks = fenced_blocks(text)
    steps = []
    for block, following in itertools.zip_longest(blocks, blocks[1:]):
        if block.language != "python":
            continue
        printed = None
        if following is not None and following.language == "text":
            between = "\n".join(text.splitlines()[text.count("\n", 0, block.end) + 1 : following.line - 2])
            printed = following.body if not between.strip() else None
        steps.append(Step(code=block.body, line=block.line, printed=printed))
    return steps
