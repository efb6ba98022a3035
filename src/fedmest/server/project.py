"""Projects for studies between sites, and their runs on a Flower network.

`init` writes everything that the parties need, with the exact commands; `run` submits the study and waits for its
result, because `flwr run` exits with 0 whatever happened.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedmest.core.exceptions import FedmestError, InputError
from fedmest.core.files import read_toml
from fedmest.data import rand_hie
from fedmest.server.proposal import Proposal

RESULT, PAGE, ERROR = "result.json", "result.html", "error.txt"  # what a run leaves in its folder
FIRST_PORT = 8000  # the SuperLink's; sites on the same machine use the next ones
FLOWER_ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

EXAMPLE_COLUMNS = """\
[columns.age]
low = 0
high = 120

[columns.sex]
levels = ["female", "male"]

[columns.ill]          # the target: whole numbers from 0 to 1
low = 0
high = 1
whole = true
"""


class RunFailed(FedmestError):
    """A run between sites ended without a result; the message says why."""


def init(folder: Path, sites: Sequence[str], with_demo: bool) -> list[str]:
    """Write a project: the study, the Flower app, one policy per site, and scripts.

    Parameters
    ----------
    folder : Path
        A new or empty folder.
    sites : sequence of str
        Names of the sites; with `with_demo` some of RAND HIE's, by default three of them.
    with_demo : bool
        Use the sites and rows of RAND HIE.

    Returns
    -------
    list of str
        Names of the sites.

    Raises
    ------
    InputError
        If the folder is not empty, or a name cannot be used.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    frames = {}
    columns, target, features, model = EXAMPLE_COLUMNS, "ill", ["age", "sex"], "logistic"
    if with_demo:
        frame = rand_hie.load()
        names = {shown: column for column, (shown, _) in rand_hie.FEATURES.items()}
        frame = frame.rename(columns={**names, "any visit": "any_visit"}).dropna()
        frames = {f"site-{name}": rows for name, rows in frame.groupby("site")}
        sites = sites or list(frames)[:3]
        for name in sites:
            if name not in frames:
                raise InputError(f"the demo has no site {name!r}; its sites are {', '.join(frames)}")
        declared = [
            f"[columns.{c}]\nlow = {low:g}\nhigh = {high:g}\n" for c, (_, (low, high)) in rand_hie.FEATURES.items()
        ]
        columns = "\n".join([*declared, "[columns.any_visit]\nlow = 0\nhigh = 1\nwhole = true\n"])
        target, features = "any_visit", list(rand_hie.FEATURES)
    _check_names(sites)
    facts = {
        "sites": json.dumps(list(sites)),
        "quorum": str(max(1, (2 * len(sites) + 2) // 3)),
        "columns": columns,
        "target": target,
        "features": json.dumps(features),
        "model": model,
        "port": str(FIRST_PORT),
        "folder": str(folder.resolve()),
        "register": "\n".join(f"register sites/{name}/key.pub {name}" for name in sites),
    }
    _write(folder, "", facts)
    for place, name in enumerate(sites):
        own = {**facts, "name": name, "node_port": str(FIRST_PORT + 1 + place)}
        _write(folder / "sites" / name, "site", own)
        if name in frames:
            frames[name].drop(columns=["site", "visits"]).to_csv(folder / "sites" / name / "rows.csv", index=False)
    return list(sites)


def _check_names(sites: Sequence[str]) -> None:
    if not sites:
        raise InputError("name the sites, --site NAME for each (or --demo)")
    for name in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
            raise InputError(f"site {name!r}: use at most 63 letters, digits, dots, dashes and underscores")
    if len(set(sites)) < len(sites):
        raise InputError("two sites have the same name; give each its own")


def _write(folder: Path, part: str, facts: dict[str, str]) -> None:
    """Fill in the templates of a part: "" for the server's side, "site" for a site."""
    source = files("fedmest.server") / "templates" / (part or "project")
    for item in sorted(source.iterdir(), key=lambda item: item.name):
        target = folder / item.name.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"@([a-z_]+)@", lambda found: facts[found[1]], item.read_text(encoding="utf-8"))
        target.write_text(text, encoding="utf-8")


def run(project: Path, resume: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Run the project's study on its Flower network.

    Parameters
    ----------
    project : Path
        Folder that `init` has written.
    resume : bool
        Continue the last run, which has no result yet; no site is charged twice.
    report : callable
        Called with one line of text per round or incident.

    Returns
    -------
    dict
        Content of the run's `result.json`.

    Raises
    ------
    InputError
        If the folder is not a project, the study has an error, or Flower is not installed.
    RunFailed
        If the run ended without a result.
    """
    study, app = project / "study.toml", project / "app"
    if not (app / "pyproject.toml").exists():
        raise InputError(f"{project} is not a project; create one with 'fedmest deploy init'")
    given = json.dumps(read_toml(study))
    Proposal.of(json.loads(given), str(study))
    folder = _run_folder(project / "runs", resume)
    command = shutil.which("flwr", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if command is None:
        raise InputError("runs between sites need Flower; pip install 'fedmest[site]'")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)  # of an earlier attempt
    config = folder / "config.toml"
    config.write_text(f"study = {json.dumps(given)}\nfolder = {json.dumps(str(folder.resolve()))}\n", encoding="utf-8")
    environment = {**os.environ, **FLOWER_ENVIRONMENT, "FLWR_HOME": str((project / "server" / "flwr").resolve())}
    call = [command, "run", str(app), "study", "--stream", "--run-config", str(config)]
    lines: list[str] = []
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(call, env=environment, **pipes) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if event := _describe(line):
                report(event)
            if os.environ.get("FEDMEST_DEBUG", "") not in ("", "0"):
                report(line.rstrip())
    if (folder / RESULT).exists():
        report(f"the run is in {folder}")
        return dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
    if (folder / ERROR).exists():
        error = (folder / ERROR).read_text(encoding="utf-8").strip()
        raise RunFailed(f"{error} (fix it, then continue with --resume)")
    (folder / "flwr.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    raise RunFailed(f"the run ended without a result: {last}; all output of Flower is in {folder / 'flwr.log'}")


def _run_folder(runs: Path, resume: bool) -> Path:
    """The folder of the next run, or of the last one that has no result yet."""
    numbers = sorted(int(p.name) for p in runs.glob("[0-9]*") if p.is_dir() and p.name.isdigit())
    if not resume:
        return runs / f"{(numbers[-1] if numbers else 0) + 1:04d}"
    if not numbers:
        raise InputError(f"{runs} holds no run to resume; run without --resume")
    last = runs / f"{numbers[-1]:04d}"
    if (last / RESULT).exists():
        raise InputError(f"the last run, {last}, has a result; run without --resume")
    return last


def _describe(line: str) -> str:
    """A JSON line of the server's log in words; empty for all others."""
    start = line.find("{")
    try:
        facts = json.loads(line[start:]) if start >= 0 else {}
    except ValueError:
        return ""
    match facts.get("event"):
        case "run":
            return f"run {facts['run']}: {facts['sites']} sites, {facts['rounds']} rounds"
        case "round":
            traffic = facts["bytes_down"] + facts["bytes_up"]
            return (
                f"round {facts['round']} of {facts['of']}: {facts['query']}, {facts['answered']} of "
                f"{facts['asked']} sites, {facts['seconds']:.1f} s, {traffic:,} bytes"
            )
        case "incident":
            return f"  {facts.get('site', 'a node')} {facts['what']}"
    return ""
