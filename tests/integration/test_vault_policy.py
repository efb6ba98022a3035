"""What a site's files say, and how a vault serves and ends."""

import contextlib
import grp
import json
import logging
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opendp")

import vaults
from conftest import one_line
from fedmest.core.exceptions import InputError
from fedmest.interface.cli.main import main
from fedmest.runs.messages import Describe, RunOpened, SiteDescription, encode
from fedmest.server.proposal import Proposal
from fedmest.site.daemon import JsonFormatter, configure_logging
from fedmest.site.ledger import Ledger, LedgerReader
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault
from vault_cases import FRAMES, NEW, PLAIN, Asker, asking, call, connected, norm, opening, tables
from vaults import Nursery, answered, raw, read, refusal, values_of, write_site

# -- files -----------------------------------------------------------------------------------------------------


def without(table: str, key: str | None = None) -> dict[str, Any]:
    left = tables()
    if key is None:
        del left[table]
    else:
        left[table] = {name: value for name, value in left[table].items() if name != key}
    return left


def column(name: str, **declared: Any) -> dict[str, Any]:
    return {**tables(), "columns": {**vaults.COLUMNS, name: declared}}


POLICIES: dict[str, tuple[dict[str, Any] | str, str]] = {
    "not TOML": ("[site\n", "is not valid TOML"),
    "an unknown table": (tables(allowed={"x": 1}), "has no table [allowed]; did you mean 'allow'?"),
    "an unknown setting": (tables(site={"nme": "x"}), "[site] has no key 'nme'; did you mean 'name'?"),
    "a table that is none": ({**tables(), "allow": 3}, "allow = 3 must be a table, written [allow]"),
    "no name": (without("site", "name"), "[site] needs name = ..., a string"),
    "no data": (without("site", "data"), "[site] needs data = ..., a path"),
    "no budget": (without("budget"), "[budget] needs lifetime = ..., a number"),
    "no models": (without("allow"), "[allow] needs models = ..., a list of strings"),
    "no columns": (without("columns"), "needs a table [columns], such as [columns.age] with low = 0, high = 100"),
    "a name of spaces": (tables(site={"name": "  "}), "name = ' ' must be a string of 1 to 200 characters"),
    "a name that is a number": (tables(site={"name": 3}), "[site] name = 3 must be a string"),
    "a budget in quotes": (tables(budget={"lifetime": "5"}), "[budget] lifetime = '5' must be a number"),
    "a budget that is true": (tables(budget={"lifetime": True}), "[budget] lifetime = True must be a number"),
    "a negative budget": (tables(budget={"lifetime": -1.0}), "lifetime = -1.0 must be a positive number"),
    "a budget too small": (tables(budget={"lifetime": 1e-200}), "lifetime = 1e-200 must be above 1e-100, below which"),
    "a run too small": (tables(budget={"lifetime": 1, "run": 1e-200}), "run = 1e-200 must be above 1e-100"),
    "a run dearer than all": (tables(budget={"lifetime": 1, "run": 2}), "run = 2 exceeds lifetime = 1"),
    "a model as a text": (tables(allow={"models": "linear"}), "[allow] models = 'linear' must be a list of strings"),
    "a model that is a number": (tables(allow={"models": [1]}), "[allow] models = [1] must be a list of strings"),
    "an unknown model": (tables(allow={"models": ["logistc"]}), "models = 'logistc' must be one of linear, "),
    "an unknown method": (tables(allow={"methods": ["fedsdg"]}), "; did you mean 'fedsgd'?"),
    "an unknown calibration": (tables(allow={"calibrations": ["none"]}), "= 'none' must be one of certified, paper"),
    "a network": (tables(allow={"models": ["mnist-cnn"]}), "[allow] models = 'mnist-cnn' must be one of linear"),
    "a method without noise": (tables(allow={"methods": ["np-pooled"]}), "methods = 'np-pooled' must be one of "),
    "rows that are no number": (tables(allow={"smallest_rows": 1.5}), "smallest_rows = 1.5 must be a whole number"),
    "no rows at least": (tables(allow={"smallest_rows": 0}), "smallest_rows = 0 must be at least 1"),
    "more rows than there are": (tables(allow={"smallest_rows": 61}), "has 60 rows without gaps; [allow] smallest_row"),
    "an unknown rule for gaps": (tables(site={"missing": "fill"}), "missing = 'fill' must be one of error, drop"),
    "an insecure that is a number": (tables(simulation={"insecure": 1}), "insecure = 1 must be true or false"),
    "a column that is no table": (column("age") | {"columns": {"age": 3}}, "age = 3 must be a table, written ["),
    "an unknown setting of a column": (column("age", lo=0), "[columns.age] has no key 'lo'; did you mean 'low'?"),
    "a range in words": (column("age", low="0"), "[columns.age] low = '0' must be a number"),
    "a range upside down": (column("age", low=5, high=5), "[columns.age]: low = 5 must lie below high = 5"),
    "a range without width": (column("age", low=0, high=1e-320), "low = 0 must lie below high = 9.99989e-321"),
    "a range without end": (column("age", low=0, high=1e300), "[columns.age] high = 1e+300 must be 1e+100 at most"),
    "a level twice": (column("sex", levels=["f", "f"]), "['f', 'f'] must be 2 to 100 different strings"),
    "one level": (column("sex", levels=["f"]), "[columns.sex] levels = ['f'] must be 2 to 100 different"),
    "levels that are numbers": (column("sex", levels=[0, 1]), "levels = [0, 1] must be a list of strings"),
    "no levels": (column("sex", levels=[]), "[columns.sex] levels = [] must be 2 to 100 different strings"),
    "levels with a range": (column("sex", levels=["f", "m"], low=0), "a column with levels cannot have low"),
    "two columns that make one": (
        column("sex=m", column="age"), "columns 'sex' and 'sex=m' both make 'sex=m'"
    ),
    "a column that the file has not": (column("agge"), "has no column 'agge'; did you mean 'age'?"),
    "a number above its range": (column("age", high=50), "column 'age' holds"),
    "a number below its range": (column("dose", low=0), "column 'dose' holds -"),
    "a fraction among whole numbers": (column("age", whole=True), "against its declaration (whole numbers)"),
    "a level that is not declared": (column("kind", levels=["high", "low"]), "'kind' holds 'middle', which is none of"),
    "texts for numbers": (column("sex"), "which is not a number; fix it, or declare levels"),
    "data that is not there": (tables(site={"data": "none.csv"}), "there is no file"),
    "data that is a folder": (tables(site={"data": "."}), "is a folder; name a CSV or Parquet file"),
    "data of another kind": (tables(site={"data": "site.toml"}), "the name must end in .csv, .tsv, .csv.gz or "),
}  # fmt: skip


@pytest.mark.parametrize("error", POLICIES)
def test_an_error_of_a_site_is_one_line_that_names_the_file_and_the_way_out(
    folder: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    content, expected = POLICIES[error]
    path = write_site(folder, "a", FRAMES["a"])
    path.write_text(content if isinstance(content, str) else vaults.toml(content))
    line = one_line(capsys, main(["site", "check", str(path)]))
    assert expected in line
    assert str(folder) in line


def test_gaps_and_infinities_in_the_rows_are_named_and_gaps_can_be_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = FRAMES["a"].astype({"age": object, "cost": object})
    frame.loc[3, "age"] = None
    path = write_site(folder, "a", frame)
    line = one_line(capsys, main(["site", "check", str(path)]))
    assert "rows.csv: column 'age' has 1 gaps; fill them in, or set missing = \"drop\" under [site]" in line
    path = write_site(folder, "a", frame, site={"missing": "drop"})
    assert main(["site", "check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 59
    frame.loc[3, ["age", "cost"]] = 50, "inf"
    path = write_site(folder, "a", frame)
    assert "column 'cost' holds inf, against its declaration (numbers)" in one_line(
        capsys, main(["site", "check", str(path)])
    )
    assert "there is no file" in one_line(capsys, main(["site", "check", str(folder / "none.toml")]))


STUDIES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown setting": ({"modle": "linear"}, "has no key 'modle'; did you mean 'model'?"),
    "a budget in quotes": ({"mu": "2"}, "mu = '2' must be a number"),
    "a quorum that is true": ({"quorum": True}, "quorum = True must be a whole number"),
    "nobody to wait for": ({"quorum": None, "sites": None}, "name the sites = [...] to wait for, or how many"),
    "a quorum of none": ({"quorum": 0}, "quorum = 0 must be at least 1"),
    "a quorum of too many": ({"quorum": 5}, "quorum = 5 exceeds the number of sites"),
    "a site twice": ({"sites": ["a", "a"]}, "sites = ['a', 'a'] must be a list of strings, each of them once"),
    "sites that are numbers": ({"sites": [1]}, "sites = [1] must be a list of strings"),
    "no patience": ({"timeout": 0.5}, "timeout = 0.5 must be between 1 and 86400 seconds"),
    "no target": ({"target": None}, "needs target = ..., a string"),
    "a target that is not declared": ({"target": "il"}, "no column 'il' is declared, which is the target"),
    "a target of another kind": ({"target": "cost"}, "the logistic model needs two levels"),
    "a feature that is not declared": ({"features": ["agge"]}, "no column 'agge' is declared; did you mean 'age'?"),
    "the target among the features": ({"features": ["age", "ill"]}, "column 'ill' is the target"),
    "no feature": ({"features": []}, "features = [] must be a list of at least one column"),
    "an unknown model": ({"model": "logit"}, "there is no model 'logit'; choose one of"),
    "an unknown method": ({"method": "sgd"}, "there is no method 'sgd'; choose one of"),
    "a method without privacy": ({"method": "np-fedavg"}, "sites answer private methods at a finite mu only"),
    "an unknown option": ({"options": {"k": 3}}, "method 'fedsgd' has no option 'k'"),
    "an option of another kind": ({"options": {"K": 0.5}}, "option K=0.5 must be a whole number"),
    "an unknown one": ({"settings": {"clp_rule": "norm"}}, "[settings] has no 'clp_rule'; did you mean 'clip_rule'?"),
    "an unknown rule": ({"settings": {"clip_rule": "soft"}}, "clip_rule='soft': choose one of consistent, norm"),
    "the paper's clip norm": ({"settings": {"calibration": "paper"}}, "sites give out no clip norm and no scales"),
    "scales off the rows": ({"settings": {"scaling": "data"}}, "sites give out no clip norm and no scales"),
    "an empty range": ({"columns": {"ill": {"low": 1, "high": 0}}}, "[columns.ill]: low = 1 must lie below high = 0"),
    "a negative mu": ({"mu": -1.0}, "mu=-1.0 must be a positive number"),
}  # fmt: skip


@pytest.mark.parametrize("error", STUDIES)
def test_an_error_of_a_study_is_one_line_that_names_the_file_and_the_way_out(folder: Path, error: str) -> None:
    changed, expected = STUDIES[error]
    given = {
        "model": "logistic", "method": "fedsgd", "mu": 2.0, "target": "ill", "features": ["age"], "quorum": 1,
        "sites": list(vaults.SIZES), "columns": dict(vaults.COLUMNS), **changed,
    }  # fmt: skip
    path = folder / "study.toml"
    path.write_text(vaults.toml({key: value for key, value in given.items() if value is not None}))
    with pytest.raises(InputError) as found:
        Proposal.read(path)
    assert expected in str(found.value)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)


# -- serving ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_socket_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_site(folder, "a", FRAMES["a"], site={"socket": "rows.csv"})
    before = (folder / "rows.csv").read_bytes()
    assert "rows.csv exists and is not a socket" in one_line(capsys, main(["site", "serve", str(path)]))
    assert (folder / "rows.csv").read_bytes() == before


def test_what_keeps_a_vault_from_listening_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def problem(code: int = 2, **site: str) -> str:
        path = write_site(folder, "a", FRAMES["a"], site=site)
        line = one_line(capsys, main(["site", "serve", str(path)]), code)
        assert not (folder / "s").exists()
        return line

    assert "is longer than 100 bytes; set a shorter one" in problem(socket="s" * 100)
    assert "cannot be created: no such file or directory" in problem(socket="nowhere/s")
    assert "group 'nobody-of-that-name' cannot be given access to the socket" in problem(group="nobody-of-that-name")
    assert "the log" in problem(log="nowhere/log")
    path = write_site(folder, "a", FRAMES["a"])
    with Ledger(folder / "ledger.sqlite"):
        line = one_line(capsys, main(["site", "serve", str(path)]), 1)
    assert "ledger.sqlite is in use by another vault; stop that one first" in line
    (folder / "ledger.sqlite").write_bytes(b"no ledger at all" * 100)
    assert "ledger.sqlite" in one_line(capsys, main(["site", "serve", str(path)]), 1)
    (folder / "ledger.sqlite").unlink()
    assert "fedmest site init" in one_line(capsys, main(["site", "serve", str(path)]))
    assert not (folder / "s").exists()


def test_a_site_begins_its_ledger_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_site(folder, "a", FRAMES["a"])
    assert "there is a ledger" in one_line(capsys, main(["site", "init", str(path)]))
    (folder / "ledger.sqlite").unlink()
    assert main(["site", "init", str(path)]) == 0
    capsys.readouterr()
    with LedgerReader(folder / "ledger.sqlite") as records:
        assert len(records) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_vault_cleanly(nursery: Nursery, folder: Path, number: int) -> None:
    process = nursery.serve(write_site(folder, "a", FRAMES["a"], site={"log": "log"}))
    values_of(call(folder, Asker(60).body(0)))
    silent = connected(folder)  # who says nothing does not hold it up
    process.send(number)
    assert process.wait() == 0, process.output
    silent.close()
    assert not (folder / "s").exists()
    events = [json.loads(line)["event"] for line in (folder / "log").read_text().splitlines()]
    assert events == ["serving", "opened", "released", "stopped"]
    assert process.output == (folder / "log").read_text()
    with Ledger(folder / "ledger.sqlite") as ledger:
        assert len(ledger) == 2


def test_a_socket_that_a_killed_vault_left_is_replaced_and_a_live_one_is_not(nursery: Nursery, folder: Path) -> None:
    path = write_site(folder, "a", FRAMES["a"])
    nursery.serve(path).kill()
    assert stat.S_ISSOCK((folder / "s").stat().st_mode)
    process = nursery.serve(path)
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    other = write_site(folder / "other", "b", FRAMES["b"], site={"socket": "../s"})
    thief = nursery.start("site", "serve", other)
    assert thief.wait() == 2
    assert "is in use by another vault" in thief.output
    second = nursery.start("site", "serve", path)
    assert second.wait() == 1
    assert "is in use by another vault" in second.output
    assert read(call(folder, encode(Describe()))) == SiteDescription("a", 60, False)
    process.kill()


def test_a_group_that_is_named_may_connect(nursery: Nursery, folder: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    process = nursery.serve(write_site(folder, "a", FRAMES["a"], site={"group": group}))
    found = (folder / "s").stat()
    assert stat.S_IMODE(found.st_mode) == 0o660 and found.st_gid == os.getgid()
    process.kill()


def test_what_leaves_and_what_is_refused_is_in_the_log(nursery: Nursery, folder: Path) -> None:
    process = nursery.serve(write_site(folder, "a", FRAMES["a"]))
    receipt = answered(call(folder, Asker(60).body(0))).receipt
    call(folder, asking(4, clip_norm=norm(-1.0), run_id="7" * 32))
    call(folder, raw({"kind": "x" * 10_000}))
    process.kill()
    lines = [json.loads(line) for line in process.output.splitlines()]
    _, opened, released, refused, unknown = lines
    assert opened["run"] == released["run"] == "0" * 8
    assert released["receipt"] == receipt and released["query"] == "gradient"
    for key in ("compute_ms", "ledger_ms"):
        assert released[key] > 0 and released[key] % 10 == 0
    assert all(round(line["time"] * 100) / 100 == line["time"] for line in lines)
    assert "clip_norm = -1.0: it must lie between" in refused["reason"]
    assert (refused["kind"], refused["run_id"], refused["round"], refused["query"]) == (
        "round request", "7" * 32, "4", "gradient"
    )  # fmt: skip
    assert unknown["kind"] == "none" and len(unknown["reason"]) <= 500


def test_only_the_owner_may_read_the_log(nursery: Nursery, folder: Path) -> None:
    """Also one that an earlier version left readable for all."""
    path = write_site(folder, "a", FRAMES["a"], site={"log": "vault.log"})
    log = folder / "vault.log"
    log.write_text("{}\n")
    log.chmod(0o644)
    nursery.serve(path).kill()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text().startswith('{}\n{"time": ')
    before = os.umask(0)
    try:
        log.unlink()
        configure_logging(log)
    finally:
        os.umask(before)
        for handler in logging.getLogger("fedmest").handlers:
            handler.close()
        logging.getLogger("fedmest").handlers = []
        logging.getLogger("fedmest").propagate = True
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_times_in_the_log_are_whole_tens_of_milliseconds() -> None:
    record = logging.makeLogRecord({"msg": "released", "facts": {"compute_ms": 12.345, "ledger_ms": 0.25, "mu": 0.123}})
    record.created = 1_700_000_000.123456
    line = json.loads(JsonFormatter().format(record))
    assert (line["time"], line["compute_ms"], line["ledger_ms"], line["mu"]) == (1_700_000_000.12, 20, 10, 0.123)


def test_a_cost_too_small_to_be_charged_is_refused_for_what_it_is(folder: Path) -> None:
    asker = Asker(60)
    asker.spec = json.dumps({**json.loads(asker.spec), "mu": 1e-110})
    with contextlib.closing(Vault(Policy.read(write_site(folder, "a", FRAMES["a"])))) as vault:
        reason = refusal(vault.handle(asker.body(0)))
        assert "must be a positive number, above 1e-100" in reason
        assert len(vault.ledger) == 0


def test_a_vault_whose_clock_was_a_year_ahead_goes_on(folder: Path) -> None:
    asker, policy = Asker(60), Policy.read(write_site(folder, "a", FRAMES["a"]))
    with contextlib.closing(Vault(policy, clock=lambda: time.time() + 366 * 86400)) as vault:
        values_of(vault.handle(asker.body(0)))
    with contextlib.closing(Vault(policy)) as vault:
        values_of(vault.handle(asker.body(1)))


def test_a_vault_holds_to_its_policy_also_for_runs_that_it_agreed_to_before(folder: Path) -> None:
    """The site's owner may allow less from one day to the next."""
    asker = Asker(60)
    with contextlib.closing(Vault(Policy.read(write_site(folder, "a", FRAMES["a"])))) as vault:
        first = vault.handle(asker.body(0))
        values_of(first)
    strict = write_site(folder, "a", FRAMES["a"], budget={"lifetime": 50.0, "run": 0.5})
    with contextlib.closing(Vault(Policy.read(strict))) as vault:
        for number in (0, 1):
            assert "the site allows 0.5" in refusal(vault.handle(asker.body(number)))
    fewer = write_site(folder, "a", FRAMES["a"][:50])
    with contextlib.closing(Vault(Policy.read(fewer))) as vault:
        assert "does not list site 'a' with its 50 rows" in refusal(vault.handle(asker.body(1)))
    with contextlib.closing(Vault(Policy.read(write_site(folder, "a", FRAMES["a"])))) as vault:
        assert vault.handle(asker.body(0)) == first
        values_of(vault.handle(asker.body(1)))


def test_a_server_does_not_choose_what_the_papers_noise_is_divided_by(seeded: dict[str, Vault]) -> None:
    """Where a site allows the paper's calibration, its gaps are the site's choice; their size is not the server's."""
    settings, vault = {**PLAIN, "calibration": "paper"}, seeded["a"]
    reply = vault.handle(opening(method="fednewton", options={"tau1": 1e9}, settings=settings))
    assert "option tau1 sets the size of the noise" in refusal(reply)
    reply = vault.handle(opening(method="fednewton", options={}, settings=settings))
    assert read(reply) == RunOpened("a", NEW)


def test_columns_of_floats_are_copies_that_compiled_loops_take(folder: Path) -> None:
    """pandas hands out views that cannot be written; loops refuse them, and a release that fails is charged for."""
    frame = FRAMES["a"].assign(ill=FRAMES["a"]["ill"].astype(float))
    loaded = Policy.read(write_site(folder, "a", frame)).load()
    assert all(column.flags.writeable and column.flags.c_contiguous for column in loaded.values())
