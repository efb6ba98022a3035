"""Studies on a real Flower network: SuperLink, SuperNodes and vaults, each a process of its own; TLS and keys."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedmest as fm
from fedmest.data import rand_hie as demo
from fedmest.server.project import ERROR, PAGE, RESULT
from fedmest.site.ledger import Ledger, LedgerReader

pytest.importorskip("flwr")
pytest.importorskip("opendp")

from conftest import PROGRAM, coef
from flower_network import FlowerNetwork, wait_until, why_not_as, write_app
from vaults import toml

ROOT = Path(__file__).resolve().parents[2]
HEART = Path(os.environ.get("FEDMEST_DATA", ROOT.parent / "shared" / "data")) / "heart_disease"
RAW = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"]
FAST = {"fedsgd": {"K": 2}, "fedavg": {"R": 1, "K": 5}, "fedhybrid": {"K1": 3, "K2": 1}, "fednewton": {"K": 5}}


def number(low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"low": low, "high": high, **more}


HEART_COLUMNS: dict[str, dict[str, Any]] = {
    "age": number(0, 120), "sex": number(0, 1), "cp": {"levels": ["1", "2", "3", "4"]}, "trestbps": number(0, 300),
    "chol": number(0, 700), "fbs": number(0, 1), "restecg": {"levels": ["0", "1", "2"]}, "thalach": number(0, 250),
    "exang": number(0, 1), "oldpeak": number(-5, 10), "disease": number(0, 1, whole=True),
}  # fmt: skip
HIE_COLUMNS = {c: number(*bounds) for c, (_, bounds) in demo.FEATURES.items()} | {"any_visit": number(0, 1, whole=True)}


def heart() -> pd.DataFrame:
    names = {"cleveland": "cleveland", "hungary": "hungarian", "switzerland": "switzerland", "va": "va"}
    parts = []
    for site, file in names.items():
        part = pd.read_csv(HEART / f"processed.{file}.data", names=[*RAW, "num"], na_values="?").assign(site=site)
        parts.append(part.assign(disease=(part["num"] > 0).astype(int)))
    frame = pd.concat(parts, ignore_index=True)
    return frame[["site", *HEART_COLUMNS]]


def hie() -> pd.DataFrame:
    names = {shown: column for column, (shown, _) in demo.FEATURES.items()}
    frame = demo.load().rename(columns={**names, "any visit": "any_visit"})
    return frame.assign(site="site-" + frame["site"].astype(str))[["site", *HIE_COLUMNS]]


class Sites:
    """A federation of vault processes on a Flower network, and what a fit in this process makes of the same rows."""

    def __init__(self, folder: Path, frame: pd.DataFrame, columns: dict[str, dict[str, Any]], target: str) -> None:
        self.folder, self.columns, self.target = folder, columns, target
        self.names = sorted(frame["site"].unique())
        self.vaults: dict[str, subprocess.Popen[bytes]] = {}
        self.runs = 0
        for name in self.names:
            (folder / name).mkdir(parents=True)
            frame[frame["site"] == name].drop(columns="site").to_csv(folder / name / "rows.csv", index=False)
            self.write_policy(name)
            Ledger(folder / name / "ledger.sqlite").close()
        texts = {c: frame[c].map(lambda v: str(int(v)), na_action="ignore") for c in columns if "levels" in columns[c]}
        bounds = {c: (f["low"], f["high"]) for c, f in columns.items() if "low" in f and c != target}
        self.federation = fm.Federation.from_frame(frame.assign(**texts), target, "site", bounds=bounds, missing="drop")
        self.app = folder / "app"
        self.app.mkdir()
        template = ROOT / "src/fedmest/server/templates/project/app__pyproject.toml"
        (self.app / "pyproject.toml").write_text(template.read_text())

    def write_policy(self, name: str, lifetime: float = 100.0, insecure: bool = True, group: str = "") -> None:
        tables = {
            "site": {"name": name, "data": "rows.csv", "missing": "drop", **({"group": group} if group else {})},
            "budget": {"lifetime": lifetime, "run": 2.0}, "allow": {"models": ["logistic"]},
            "simulation": {"insecure": insecure}, "columns": self.columns,
        }  # fmt: skip
        (self.folder / name / "site.toml").write_text(toml(tables), encoding="utf-8")

    @property
    def sockets(self) -> dict[str, Path]:
        return {name: self.folder / name / "vault.sock" for name in self.names}

    def start(self, name: str) -> None:
        with (self.folder / name / "vault.log").open("ab") as log:
            self.vaults[name] = subprocess.Popen(
                [*PROGRAM, "site", "serve", str(self.folder / name / "site.toml")], stdout=log, stderr=log,
            )  # fmt: skip

    def wait(self) -> None:
        for name, path in self.sockets.items():
            log = self.folder / name / "vault.log"
            wait_until(lambda: path.exists() or self.vaults[name].poll() is not None, f"vault {name}")  # noqa: B023
            assert path.exists(), log.read_text()

    def stop(self) -> None:
        for process in self.vaults.values():
            process.kill()
            process.wait()

    def study(self, method: str, seed: int | None = None, **changes: Any) -> dict[str, Any]:
        """A run configuration; its folder is new unless one is given."""
        self.runs += 1
        features = [c for c in self.columns if c != self.target]
        study = {
            "model": "logistic", "method": method, "mu": 2.0, "target": self.target, "features": features,
            "sites": self.names, "quorum": len(self.names), "timeout": 90, "settings": {"clip_norm": 1.0},
            "options": FAST[method], "columns": self.columns, **({} if seed is None else {"seed": seed}), **changes,
        }  # fmt: skip
        return {"study": json.dumps(study), "folder": str(self.folder / f"run{self.runs}")}

    def local(self, method: str, seed: int) -> fm.Result:
        return fm.fit(self.federation, "logistic", method, 2.0, clip_norm=1.0, seed=seed, **FAST[method])


@contextmanager
def network(
    folder: Path, frame: pd.DataFrame, columns: dict[str, dict[str, Any]], target: str,
    prepare: Callable[[Sites], None] = lambda sites: None, **options: Any,
) -> Iterator[tuple[Sites, FlowerNetwork]]:  # fmt: skip
    sites = Sites(folder / "sites", frame, columns, target)
    prepare(sites)
    with ExitStack() as stack:
        stack.callback(sites.stop)
        for name in sites.names:
            sites.start(name)
        flower = stack.enter_context(FlowerNetwork(folder / "flower", sites.sockets, **options))
        sites.wait()
        yield sites, flower


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sites, FlowerNetwork]]:
    if not HEART.is_dir():
        pytest.skip(f"the UCI heart disease files are not in {HEART}; FEDMEST_DATA names another folder")
    with network(tmp_path_factory.mktemp("heart"), heart(), HEART_COLUMNS, "disease") as both:
        yield both


def result_of(config: dict[str, Any], done: Any) -> dict[str, Any]:
    path = Path(config["folder"]) / RESULT
    assert path.exists(), done.log
    assert "What is guaranteed" in path.with_name(PAGE).read_text(encoding="utf-8")
    return dict(json.loads(path.read_text()))


def theta(result: dict[str, Any]) -> np.ndarray:
    return np.array(list(result["coefficients"].values()))


def spent(sites: Sites) -> dict[str, float]:
    found = {}
    for name in sites.names:
        with LedgerReader(sites.folder / name / "ledger.sqlite") as records:
            found[name] = records.spent_mu()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", FAST)
def test_four_hospitals_on_the_network_fit_what_one_process_fits(
    hospitals: tuple[Sites, FlowerNetwork], method: str
) -> None:
    sites, flower = hospitals
    config = sites.study(method, seed=11)
    before = spent(sites)
    result = result_of(config, flower.run(sites.app, config))
    local = sites.local(method, 11)
    assert list(result["coefficients"]) == list(local.param_names)
    np.testing.assert_allclose(theta(result), coef(local), rtol=0, atol=1e-12)
    assert result["privacy"]["mu"] == pytest.approx(local.privacy.mu)
    assert result["network"]["incidents"] == []
    after = spent(sites)
    for name in sites.names:
        assert np.sqrt(after[name] ** 2 - before[name] ** 2) == pytest.approx(local.privacy.mu)


@pytest.mark.slow
def test_with_noise_from_the_operating_system_the_fit_is_within_its_predicted_error(
    hospitals: tuple[Sites, FlowerNetwork],
) -> None:
    """Six standard deviations of 300 seeded fits in every coefficient: a false alarm once in ten million runs."""
    sites, flower = hospitals
    config = sites.study("fednewton")
    result = result_of(config, flower.run(sites.app, config))
    seeded = np.array([coef(sites.local("fednewton", seed)) for seed in range(300)])
    away = np.abs(theta(result) - seeded.mean(axis=0)) / seeded.std(axis=0)
    assert 0 < away.max() < 6
    assert "drawn at the sites" in result["privacy"]["statement"]
    assert result["privacy"]["certified"]


@pytest.mark.slow
def test_a_site_that_dies_in_a_round_is_left_out_and_comes_back(hospitals: tuple[Sites, FlowerNetwork]) -> None:
    sites, flower = hospitals
    config = sites.study("fedsgd", seed=5, quorum=3, timeout=25, options={"K": 4})
    run = flower.start(sites.app, config)
    run.wait_for('"event": "round"')
    flower.kill_node("va")
    done = run.wait(600)
    result = result_of(config, done)
    rounds = result["network"]["rounds"]
    assert len(rounds) == 4 and rounds[0]["answered"] == 4 and rounds[-1]["answered"] == 3
    gone = {(i["site"], i["what"].split(" within")[0]) for i in result["network"]["incidents"]}
    assert gone == {("va", "did not answer")}
    assert np.isfinite(theta(result)).all()
    flower.restart_node("va")
    config = sites.study("fedavg", seed=6)
    again = result_of(config, flower.run(sites.app, config))
    np.testing.assert_allclose(theta(again), coef(sites.local("fedavg", 6)), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_was_and_no_site_is_charged_twice(
    hospitals: tuple[Sites, FlowerNetwork],
) -> None:
    sites, flower = hospitals
    config = sites.study("fedsgd", seed=8, options={"K": 3})
    before = spent(sites)
    run = flower.start(sites.app, config)
    run.wait_for('"event": "round"')
    flower.kill_serverapp()
    run.wait(600)
    assert not (Path(config["folder"]) / RESULT).exists()
    result = result_of(config, flower.run(sites.app, config))
    whole = fm.fit(sites.federation, "logistic", "fedsgd", 2.0, clip_norm=1.0, seed=8, K=3)
    np.testing.assert_allclose(theta(result), coef(whole), rtol=0, atol=1e-12)
    after = spent(sites)
    for name in sites.names:
        assert np.sqrt(after[name] ** 2 - before[name] ** 2) == pytest.approx(2.0)


@pytest.mark.slow
def test_a_study_that_no_site_allows_stops_with_the_sites_reasons(hospitals: tuple[Sites, FlowerNetwork]) -> None:
    sites, flower = hospitals
    config = sites.study("fedavg", mu=3.0)
    before = spent(sites)
    flower.run(sites.app, config)
    error = (Path(config["folder"]) / ERROR).read_text()
    assert "quorum is 4" in error and "va refused: mu = 3 for a run; the site allows 2" in error
    assert spent(sites) == before


@pytest.mark.parametrize("method", [m if m == "fednewton" else pytest.param(m, marks=pytest.mark.slow) for m in FAST])
def test_six_cities_on_the_network_fit_what_one_process_fits(cities: tuple[Sites, FlowerNetwork], method: str) -> None:
    sites, flower = cities
    config = sites.study(method, seed=3)
    result = result_of(config, flower.run(sites.app, config))
    np.testing.assert_allclose(theta(result), coef(sites.local(method, 3)), rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def cities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sites, FlowerNetwork]]:
    with network(tmp_path_factory.mktemp("hie"), hie(), HIE_COLUMNS, "any_visit") as both:
        yield both


THIEF = """\
import json, os, socket, struct
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def tried(action):
    try:
        return str(action())[:2000]
    except Exception as error:
        return type(error).__name__


def asked(path, request):
    text = json.dumps({"head": request, "arrays": {}}).encode()
    body = struct.pack(">Q", len(text)) + text
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(20)
        connection.connect(path)
        connection.sendall(struct.pack(">Q", len(body)) + body)
        return connection.recv(65536)


@app.query()
def answer(message, context):
    path = context.node_config["socket"]
    home = os.path.dirname(path)
    said = {
        "user": str(os.getuid()), "site": context.node_config["site"],
        "rows": tried(lambda: open(home + "/rows.csv").read()),
        "policy": tried(lambda: open(home + "/site.toml").read()),
        "ledger": tried(lambda: open(home + "/ledger.sqlite", "rb").read()),
        "write": tried(lambda: open(home + "/ledger.sqlite", "ab").write(b"x")),
        "listing": tried(lambda: os.listdir(home)),
        "describe": tried(lambda: asked(path, {"kind": "describe"})),
    }
    for what in ("rows", "export", "ledger", "shutdown", "eval", "__class__"):
        said["kind " + what] = tried(lambda: asked(path, {"kind": what}))
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)
"""


def test_a_foreign_app_gets_nothing_from_a_vault_that_belongs_to_another_user(tmp_path: Path) -> None:
    if reason := why_not_as("nobody"):
        pytest.skip(reason)
    frame = pd.DataFrame({"site": "north", "age": np.arange(40.0), "ill": np.arange(40) % 2})
    columns = {"age": number(0, 120), "ill": number(0, 1, whole=True)}
    group = subprocess.run(["id", "-gn", "nobody"], check=True, capture_output=True, text=True).stdout.strip()

    def guard(sites: Sites) -> None:
        sites.write_policy("north", insecure=False, group=group)
        home = sites.folder / "north"
        for path in (tmp_path, *tmp_path.parents[:2], sites.folder, home):
            path.chmod(0o711)  # the socket can be reached by whoever knows its name; nothing can be listed or read
        for file in home.iterdir():
            file.chmod(0o600)

    with network(tmp_path, frame, columns, "ill", guard, user="nobody") as (sites, flower):
        done = flower.run(write_app(tmp_path / "thief", client=THIEF))
        line = next(line for line in done.log.splitlines() if "reply 0 north" in line)
        said = ast.literal_eval(line.partition("north ")[2])
        assert said["user"] != "0" and said["site"] == "north"
        for what in ("rows", "policy", "ledger", "write", "listing"):
            assert said[what] == "PermissionError", (what, said[what])
        assert '"rows": 40' in said["describe"]  # a public fact; so the socket was reached
        for what, reply in said.items():
            if what.startswith("kind "):
                assert "no such message; there are describe, " in reply
        assert spent(sites) == {"north": 0.0}


def test_the_readmes_commands_take_a_newcomer_to_a_fit(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    block = text.partition("## Between sites")[2].partition("```bash\n")[2].partition("```")[0]
    install, _, commands = block.partition("\n")
    assert install.startswith("pip install") and "fedmest deploy run" in commands
    script = "set -e\n" + commands.replace("kill $(jobs -p)", "kill $(jobs -p) || true")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    try:
        out, err = process.communicate(timeout=600)
    finally:
        _end(process.pid)
    assert process.returncode == 0, (out, err, *(log.read_text()[-3000:] for log in tmp_path.rglob("*.log")))
    assert "3 of 3 sites" in err and "logistic regression, FedNewton" in out
    assert "1-Gaussian differentially private" in out
    assert "Spent in all: mu = 1 of 4" in out


def _end(group: int) -> None:
    """Whatever of a script is still there, politely and then not."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, how)
        except ProcessLookupError:
            return
        time.sleep(2)
