"""The application as a whole: help, exit codes, what it loads, and that the docs name everything."""

from __future__ import annotations

import errno
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_cases import call
from doc_blocks import ROOT
from typer.main import get_command

from calcode import CalcodeWarning, __version__
from calcode.cli.app import COMMANDS, app
from calcode.cli.running import ExitCode, guarded

NAMES = [name for names in COMMANDS.values() for name in names.split()]


def test_help_lists_every_command_and_what_the_software_is_not(run: Callable[..., Any]) -> None:
    page = run("--help").stdout
    assert {"demo", "split", "fit", "decide", "evaluate", "report", "inspect"} <= set(NAMES)
    assert [name for name in NAMES if name not in page] == []
    assert "not a medical device" in page


def test_version(run: Callable[..., Any]) -> None:
    assert run("--version").stdout == f"calcode {__version__}\n"


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_an_example_that_the_command_understands(name: str, run: Callable[..., Any]) -> None:
    page = run(name, "--help").stdout
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    examples = command.help.replace(r"\[", "[").partition("\nExample")[2].partition(":\n")[2]
    assert examples.startswith("  calcode")
    # Shown line by line, not joined or broken.
    assert [line for line in examples.splitlines() if line.strip() not in page] == []
    for example in examples.replace("\\\n", " ").splitlines():
        program, given, *arguments = shlex.split(example)
        assert (program, given) == ("calcode", name)
        command.make_context(name, arguments)


def test_a_password_that_is_asked_for_is_not_called_required(run: Callable[..., Any]) -> None:
    page = run("service", "account", "--help", columns=200).stdout
    (line,) = [line for line in page.splitlines() if "--password" in line]
    assert "required" not in line
    assert "asked for if left out" in line
    assert run("service", "account", "nowhere.toml", "a.jones", "--role", "admin").stdout.startswith("Password:")


def test_help_shows_square_brackets_as_they_are(run: Callable[..., Any]) -> None:
    assert "calcode[service]" in run("serve", "--help").stdout


@pytest.mark.parametrize("name", ["--help", *NAMES])
def test_help_fits_a_terminal(name: str, run: Callable[..., Any]) -> None:
    page = run(*([name] if name == "--help" else [name, "--help"])).stdout
    assert max(map(len, page.splitlines())) <= 80


def test_every_result_can_be_had_as_json() -> None:
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    for name, command in list(commands.items()):
        # A group has no results of its own; its commands have.
        inner = getattr(command, "commands", {})
        commands |= {f"{name} {own}": entry for own, entry in inner.items()}
        if inner:
            del commands[name]
    lacking = [
        name
        for name, command in commands.items()
        if "--json" not in {option for parameter in command.params for option in parameter.opts}
    ]
    assert lacking == []


def test_the_docs_name_every_command_and_option() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    missing = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        start = page.find(f"\n## `calcode {name}`\n")
        part = page[start : page.find("\n## ", start + 5)] if start >= 0 else ""
        options = [max(parameter.opts, key=len) for parameter in command.params]
        missing += [f"{name} {option}" for option in options if option[0] == "-" and f"`{option}`" not in part]
        missing += [name] if start < 0 else []
        inner = getattr(command, "commands", {})
        missing += [f"{name} {own}" for own in inner if f"`{own}`" not in part and f"calcode {name} {own}" not in part]
    assert missing == []


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_line_is_quick_to_load() -> None:
    # Everything heavier than rich is imported by the command that needs it, and before Ctrl-C is heeded nothing is.
    assert {"numpy", "typer", "rich"} & loaded_by("import calcode.cli") == set()
    loaded = loaded_by("import calcode.cli.app")
    assert {"calcode", "typer"} <= loaded
    assert {"matplotlib", "pandas", "pyarrow", "safetensors", "scipy", "sklearn", "torch"} & loaded == set()
    heavy = ("calcode.baselines", "calcode.report", "calcode.demo.cohorts", "calcode.backbones", "calcode.engines")
    assert [name for name in loaded if name.startswith(heavy)] == []


# ---------------------------------------------------------------------- exit codes, in processes of their own


def test_success_is_0(here: Path) -> None:
    done = call("inspect", "model.safetensors", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_data_are_1_and_one_sentence_that_names_file_column_and_remedy(here: Path) -> None:
    done = call("fit", "skin.parquet", "-o", "other.safetensors", cwd=here)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: skin.parquet: column 'role' lacks")
    assert "calcode split skin.parquet" in line
    assert not (here / "other.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_1(here: Path) -> None:
    done = call("inspect", ".", cwd=here)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: .: ")


@pytest.mark.parametrize(
    "line",
    [
        "frobnicate",
        "fit split.parquet",
        "fit split.parquet -o model.txt",
        "fit split.parquet -o nowhere/model.safetensors",
        "fit split.parquet -o other.safetensors --miscoverage 2",
        "fit split.parquet -o other.safetensors --level median",
        "fit split.parquet -o other.safetensors --guard 0.1 --guard melanoma=0.02",
        "fit split.parquet -o other.safetensors --bandwidth wide",
        "fit split.parquet -o other.safetensors --where site",
        "split skin.parquet -o other.parquet --sizes 0.5,0.5",
        "split skin.parquet -o other.parquet --guard 0",
        "evaluate split.parquet.txt split.parquet",
    ],
)
def test_a_command_that_is_not_understood_is_2(line: str, here: Path, run: Callable[..., Any]) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert not list(here.glob("other*"))


def _failing() -> None:
    raise ZeroDivisionError("a defect")


def test_a_defect_is_4_and_shows_no_traceback_unless_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CALCODE_DEBUG", raising=False)
    with pytest.raises(typer.Exit) as stopped:
        guarded(_failing)()
    assert stopped.value.exit_code == ExitCode.UNEXPECTED == 4
    quiet = capsys.readouterr().err
    assert "ZeroDivisionError (a defect)" in quiet
    assert "Traceback" not in quiet

    monkeypatch.setenv("CALCODE_DEBUG", "1")
    with pytest.raises(typer.Exit):
        guarded(_failing)()
    assert "Traceback" in capsys.readouterr().err


def _denied() -> None:
    raise PermissionError(errno.EACCES, "Permission denied", "zz.key")


def test_a_denied_permission_comes_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        guarded(_denied)()
    assert capsys.readouterr().err.startswith("Error: zz.key: permission denied; name another place")


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interruption_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped:
        guarded(_interrupted)()
    assert stopped.value.exit_code == 130
    assert "Stopped" in capsys.readouterr().err


def _warning() -> None:
    import warnings

    for text in ("first", "second", "first"):
        warnings.warn(text, CalcodeWarning, stacklevel=1)
    typer.echo("result")


def test_warnings_are_told_once_each_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(_warning)()
    printed = capsys.readouterr()
    assert printed.out == "result\n"
    assert printed.err.splitlines() == ["Warning: first", "Warning: second"]


def test_warnings_come_before_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    def both() -> None:
        _warning()
        _failing()

    with pytest.raises(typer.Exit):
        guarded(both)()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Warning: first"
    assert lines[-1].startswith("Error: ")
