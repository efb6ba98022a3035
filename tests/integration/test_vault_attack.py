"""The vault of a site, attacked: by a server that asks for more than was agreed, by bytes, by numbers at the edge."""

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opendp")

import vaults
from fedmest.methods import METHODS
from fedmest.queries.histogram import SCORE_GRID, SIGNED_GRID
from fedmest.runs.messages import (
    Describe,
    OpenRun,
    Refusal,
    RoundReply,
    RunOpened,
    SiteDescription,
    encode,
    unpack,
)
from fedmest.runs.phases.scaling import FINE_BINS
from fedmest.runs.spec import RunSpec
from fedmest.site import connection
from fedmest.site import daemon as serving
from fedmest.site import vault as vault_module
from fedmest.site.ledger import LedgerReader
from fedmest.site.policy import Policy
from fedmest.site.vault import Vault
from vault_cases import (
    ALLOWED,
    DEEP,
    DESCENT,
    DRIFTING,
    EDGES,
    FRAMES,
    FRESH,
    GIVEN,
    INF,
    INSECURE,
    MANY,
    NAN,
    NEW,
    PLAIN,
    RUN,
    SCALES,
    asking,
    call,
    connected,
    honest,
    norm,
    one,
    opening,
    opening_with,
    proposed,
    released,
    spec_of,
)
from vaults import Nursery, answered, is_refused, raw, read, refusal, values_of, write_site

# -- a hostile server ------------------------------------------------------------------------------------------


def with_scales(**changed: Any) -> bytes:
    return asking(4, **{**SCALES, **changed})


def target(*numbers: float) -> np.ndarray:
    return np.array(numbers)


RIDGE: dict[str, Any] = {
    "run_id": "e" * 32, "spec": proposed(features=["age", "dose"], settings={"clip_norm": 1.0, "ridge": 1e300}),
}  # fmt: skip
COUNTS = {"model": "negative-binomial", "target": "visits"}
NO_MESSAGE = "no such message; there are describe, "
NO_REQUEST = "a site answers describe, open run and round request"
UNREADABLE = "the spec cannot be read"


def shaped(shape: list[int]) -> bytes:
    text = json.dumps({"head": {"kind": "describe"}, "arrays": {"x": shape}}).encode()
    return len(text).to_bytes(8, "big") + text


TRICKS: dict[str, tuple[bytes, str]] = {
    # parameters
    "huge params": (asking(4, params=one(1e7)), "params must hold finite numbers of at most 1e"),
    "params of the largest double": (asking(4, params=one(-1.7e308)), "params must hold finite"),
    "params with NaN": (asking(4, params=one(NAN)), "params must hold finite"),
    "params with infinity": (asking(4, params=one(-INF)), "params must hold finite"),
    "params of another shape": (asking(4, params=np.zeros((1, 5))), "params must be an array of shape"),
    "params without their first axis": (asking(4, params=np.zeros(4)), "params must be an array of shape"),
    "empty params": (asking(4, params=np.zeros((0, 4))), "params must be an array of shape"),
    "no params": (asking(4, without=("params",)), "params must be an array of shape"),
    "no params for a histogram": (
        asking(0, run_id=FRESH, without=("params",)), "params must be an array of shape"
    ),
    "params in the head": (asking(4, params=[[0.0] * 4]), "unknown field 'params'"),
    # rounds and queries
    "a round again with other params": (asking(3, params=one(0.2)), "answered before, to another request"),
    "a round again with another clip norm": (asking(3, clip_norm=norm(2.0)), "answered before, to another request"),
    "a histogram again with other edges": (asking(2, edges=EDGES[2] + 1), "answered before, to another request"),
    "one more round": (asking(6), "the schedule has 6 rounds"),
    "round two billion": (asking(2**31 - 1), "the schedule has 6 rounds"),
    "a round beyond all schedules": (asking(2**63), "a round has a number"),
    "a round before the first": (asking(-1), "field 'round' must be a whole number of at most 64 bits"),
    "a round beyond all numbers": (asking(2**64), "field 'round' must be a whole number of at most 64 bits"),
    "half a round": (asking(4.0), "field 'round' has the wrong type (float)"),
    "a round called true": (asking(True), "field 'round' has the wrong type (bool)"),
    "a round in words": (asking("4"), "field 'round' has the wrong type (str)"),
    "no round": (asking(4, without=("round",)), "field 'round' is missing"),
    "a query that is not due": (asking(4, query="histogram"), "round 5 is for the query 'gradient'"),
    "a query that nobody knows": (asking(4, query="rows"), "round 5 is for the query 'gradient'"),
    "a query that is no text": (asking(4, query=["gradient"]), "field 'query' has the wrong type (list)"),
    "a query without end": (asking(4, query="x" * 1001), "field 'query' is too long (1,001 characters)"),
    "the rows themselves": (raw({"kind": "rows"}), NO_MESSAGE),
    "a command": (raw({"kind": "shutdown"}), NO_MESSAGE),
    "no request": (raw({}), NO_MESSAGE),
    "a request that is a table": (raw({"kind": {"round": 1}}), NO_MESSAGE),
    "a request of the vaults of old": (raw({"do": "describe"}), NO_MESSAGE),
    "a description of more": (raw({"kind": "describe", "rows": True}), "unknown field 'rows'"),
    "a description with an array": (raw({"kind": "describe"}, {"rows": np.ones(3)}), "unknown field 'rows'"),
    # messages that only sites send
    "a site's description": (encode(SiteDescription("a", 60, False)), NO_REQUEST),
    "a site's agreement": (encode(RunOpened("a", RUN)), NO_REQUEST),
    "a site's reply": (encode(RoundReply("a", RUN, 4, "0" * 64, {"values": np.zeros(4)})), NO_REQUEST),
    "a site's refusal": (encode(Refusal("a", "no")), NO_REQUEST),
    # runs
    "another spec under the same run": (asking(4, spec=proposed(mu=1.9)), "was opened with another spec"),
    "the same spec spelt otherwise": (asking(4, spec=f" {proposed()}"), "was opened with another spec"),
    "the same run opened otherwise": (opening(RUN, options={"K": 4}), "was opened with another spec"),
    "a run without a name": (opening(None), "field 'run_id' has the wrong type (NoneType)"),
    "a run with an empty name": (opening(""), "a run is named by"),
    "a run with a short name": (opening("abc"), "a run is named by"),
    "a run with a path for a name": (opening("../../../../etc/passwd"), "a run is named by"),
    "a run with an endless name": (opening("a" * 65), "a run is named by"),
    "no spec": (raw({"kind": "open run", "run_id": NEW, "seed64": None}), "field 'spec' is missing"),
    "a spec that is no text": (opening_with({}), "field 'spec' has the wrong type (dict)"),
    "a spec without end": (opening_with("x" * 1_000_001), "field 'spec' is too long (1,000,001 characters)"),
    "a spec that is no JSON": (opening_with("{"), UNREADABLE),
    "a spec that is a list": (opening_with("[1]"), UNREADABLE),
    "a spec of depth": (opening_with("[" * DEEP + "]" * DEEP), UNREADABLE),
    "a spec that says more than we know": (opening(sd=0.0), "the spec cannot be read: there is no 'sd'"),
    "a spec that says too little": (opening_with("{}"), UNREADABLE),
    "values for a run that opens": (opening_with(proposed(), params=np.zeros((1, 4))), "unknown field 'params'"),
    # the seed of the noise
    "a seed": (asking(4, seed64=1), "draws its noise from its operating system"),
    "a seed of zero": (asking(4, seed64=0), "draws its noise from its operating system"),
    "a seed for a new run": (opening_with(proposed(), seed64=5), "draws its noise"),
    "a seed beyond 64 bits": (asking(4, seed64=2**64), "field 'seed64' must be a whole number of at most 64 bits"),
    "a negative seed": (asking(4, seed64=-1), "field 'seed64' must be a whole number of at most 64 bits"),
    "a seed in words": (asking(4, seed64="1"), "field 'seed64' has the wrong type (str)"),
    "a seed that is true": (asking(4, seed64=True), "field 'seed64' has the wrong type (bool)"),
    "no seed at all": (asking(4, without=("seed64",)), "field 'seed64' is missing"),
    # the cost
    "more mu than a run may cost": (opening(mu=10.1), "mu = 10.1 for a run; the site allows 10"),
    "mu without end": (opening(mu=INF), "Infinity is no number"),
    "mu that is no number": (opening(mu=NAN), "NaN is no number"),
    "a negative mu": (opening(mu=-1.0), "must be a positive number"),
    "a mu of nothing": (opening(mu=0), "must be a positive number"),
    "a mu in words": (opening(mu="1"), "must be a positive number"),
    "a mu that is true": (opening(mu=True), "must be a positive number"),
    "no mu": (opening(mu=None), "must be a positive number"),
    "a mu beyond all doubles": (opening(mu=10**400), UNREADABLE),
    "less noise by a field": (asking(4, mus=[9.0]), "unknown field 'mus'"),
    "less noise by an array": (asking(4, mus=np.array([9.0])), "round 5 takes no mus"),
    "a standard deviation": (asking(4, sd=1e-9), "unknown field 'sd'"),
    "a sensitivity": (asking(4, sensitivity=0.0), "unknown field 'sensitivity'"),
    "a penalty of the server's": (asking(4, penalty=np.zeros((1, 4))), "round 5 takes no penalty"),
    "a clipping of the server's": (asking(4, clipping=np.ones(1)), "round 5 takes no clipping"),
    "a spec with a noise of its own": (opening(settings={"sd": 0.0}), "the spec's settings has no 'sd'"),
    # what may be asked for at all
    "the paper's calibration": (opening(settings={"calibration": "paper"}), "calibration 'paper' is not allowed here"),
    "a calibration of its own": (opening(settings={"calibration": "none"}), "choose one of certified, paper"),
    "all rows pooled": (opening(method="np-pooled", options={}), "method 'np-pooled' is not allowed here"),
    "local fits": (opening(method="np-local", options={}), "method 'np-local' is not allowed here"),
    "averaging without noise": (opening(method="np-fedavg"), "method 'np-fedavg' is not allowed here"),
    "a method that nobody knows": (opening(method="fedrows"), "there is no method 'fedrows'"),
    "a method for networks": (opening(method="fednewton-nn", options={}), "fednewton-nn' works for"),
    "a network": (opening(model="mnist-cnn"), "model 'mnist-cnn' is not allowed here"),
    "a model that the site does not allow": (opening(model="poisson"), "model 'poisson' is not allowed here"),
    "a model that nobody knows": (opening(model="rows"), "there is no model 'rows'"),
    "a model that is no text": (opening(model=["logistic"], target="ill", classes=[]), UNREADABLE),
    "a parameter that no family has": (opening(**COUNTS, params={"sd": 0.0}), "has no parameter 'sd'"),
    "a parameter of a model that has none": (opening(params={"dispersion": 1.0}), "has no parameter 'dispersion'"),
    "a parameter beyond its range": (opening(**COUNTS, params={"dispersion": 1e300}), "dispersion = 1e+300 of the"),
    "a parameter of nothing": (opening(**COUNTS, params={"dispersion": 0.0}), "dispersion = 0.0 of the"),
    "a parameter in words": (opening(**COUNTS, params={"dispersion": "1"}), "dispersion = '1' of the"),
    "a parameter that is no number": (opening(**COUNTS, params={"dispersion": NAN}), "NaN is no number"),
    "a parameter that is no number, in the name": (
        opening(model="negative-binomial(dispersion=nan)", target="visits"), "there is no model"
    ),
    "a parameter in the name beside another": (
        opening(model="negative-binomial(dispersion=0.5)", target="visits", params={"dispersion": 2.0}),
        "there is no model",
    ),
    "parameters that are a list": (opening(**COUNTS, params=[1.0]), UNREADABLE),
    "the paper's clip norm": (opening(settings={"clip_norm": "paper"}), "clip_norm='paper' reads the data without"),
    "scales read off the rows": (opening(settings={"scaling": "data"}), "read off the rows without spending"),
    "a setting that nobody knows": (opening(settings={"noise": "none"}), "the spec's settings has no 'noise'"),
    "settings that are a list": (opening(settings=[1]), UNREADABLE),
    "sites that take part by less than nothing": (opening(settings={"participation": -1.0}), "participation=-1.0 must"),
    # the clip norm
    "another clip norm than before": (
        asking(4, clip_norm=norm(1.6)), "the clip_norm has changed since an earlier round"
    ),
    "a clip norm of nothing": (asking(4, clip_norm=norm(0.0)), "it must lie between"),
    "a negative clip norm": (asking(4, clip_norm=norm(-1.5)), "it must lie between"),
    "a huge clip norm": (asking(4, clip_norm=norm(1e300)), "it must lie between"),
    "a clip norm that is no number": (asking(4, clip_norm=norm(NAN)), "it must lie between"),
    "a clip norm without end": (asking(4, clip_norm=norm(INF)), "it must lie between"),
    "two clip norms": (asking(4, clip_norm=np.array([1.5, 1.5])), "clip_norm must be one number"),
    "a clip norm without an axis": (asking(4, clip_norm=np.array(1.5)), "clip_norm must be one number"),
    "a clip norm in words": (asking(4, clip_norm="private"), "unknown field 'clip_norm'"),
    "a clip norm in the head": (asking(4, clip_norm=1.5), "unknown field 'clip_norm'"),
    "no clip norm": (asking(4, without=("clip_norm",)), "clip_norm must be one number"),
    "a clip norm where nothing is clipped": (
        asking(1, run_id=FRESH, clip_norm=norm(1.0)), "round 2 takes no clip_norm"
    ),
    "a clip norm before it is set": (asking(2, run_id=FRESH, clip_norm=norm(1.0)), "round 3 takes no clip_norm"),
    "another clip norm than the spec's": (asking(0, **GIVEN, clip_norm=norm(2.0)), "round 1 takes no clip_norm"),
    "the clip norm that the spec gives": (asking(0, **GIVEN, clip_norm=norm(1.0)), "round 1 takes no clip_norm"),
    "a spec with a clip norm of nothing": (
        opening(settings={"clip_norm": 0.0}), "clip_norm=0.0: choose private, paper, or give a positive number"
    ),
    "a spec with a huge clip norm": (opening(settings={"clip_norm": 1e300}), "it must lie between"),
    "a spec with a clip norm beyond all doubles": (opening(settings={"clip_norm": 10**400}), UNREADABLE),
    # scales
    "other scales than before": (with_scales(scale=SCALES["scale"] * 2), "the scaling has changed"),
    "another centre than before": (with_scales(centre=SCALES["centre"] + 1), "the scaling has changed"),
    "a scale that is other by one bit": (
        with_scales(scale=np.nextafter(SCALES["scale"], INF)), "the scaling has changed"
    ),
    "a scale for classes": (with_scales(target_scale=target(0.0, 2.0)), "the logistic model takes its target as it is"),
    "a centre for classes": (
        with_scales(target_scale=target(-1e30, 1.0)), "the logistic model takes its target as it is"
    ),
    "a scale of nothing": (with_scales(scale=one(0.0, 1, SCALES["scale"])), "scales must lie between"),
    "a subnormal scale": (with_scales(scale=one(5e-324, 1, SCALES["scale"])), "scales must lie between"),
    "a huge scale": (with_scales(scale=one(1e300, 1, SCALES["scale"])), "scale must hold finite"),
    "a negative scale": (with_scales(scale=one(-2.0, 1, SCALES["scale"])), "scales must lie between"),
    "a scale that is no number": (with_scales(scale=one(NAN, 1, SCALES["scale"])), "scale must hold finite"),
    "a huge centre": (with_scales(centre=one(1e300, 1, SCALES["centre"])), "centre must hold finite"),
    "a centre that is no number": (with_scales(centre=one(NAN, 1, SCALES["centre"])), "centre must hold finite"),
    "scales for other columns": (with_scales(scale=np.ones(4)), "scale must be an array of shape"),
    "no scales": (asking(4, without=("scale",)), "scale must be an array of shape"),
    "no centre": (asking(4, without=("centre",)), "centre must be an array of shape"),
    "no scaling at all": (
        asking(4, without=("centre", "scale", "target_scale")), "centre must be an array of shape"
    ),
    "no scale of the target": (asking(4, without=("target_scale",)), "target_scale must be an array of shape (2,)"),
    "a target's scale of nothing": (with_scales(target_scale=target(0.0, 0.0)), "scales must lie between"),
    "a target's scale that is no number": (with_scales(target_scale=target(0.0, NAN)), "target_scale must hold finite"),
    "a target's centre that is no number": (
        with_scales(target_scale=target(NAN, 1.0)), "target_scale must hold finite"
    ),
    "a target's scale in words": (with_scales(target_scale=["0", "1"]), "unknown field 'target_scale'"),
    "three scales of the target": (
        with_scales(target_scale=target(0.0, 1.0, 1.0)), "target_scale must be an array of shape (2,)"
    ),
    "scales before they are set": (asking(0, run_id=FRESH, **SCALES), "round 1 takes no centre"),
    "scales where the spec has them declared": (asking(0, **GIVEN, **SCALES), "round 1 takes no centre"),
    "a ridge that overflows": (
        asking(2, **RIDGE, scale=np.full(2, 1e-30)), "the ridge is too large for these scales"
    ),
    # edges and drifts
    "unsorted edges": (
        asking(0, run_id=FRESH, edges=EDGES[0][:, ::-1]), "bin edges must be finite numbers in ascending"
    ),
    "edges that are no numbers": (asking(0, run_id=FRESH, edges=one(NAN, 3, EDGES[0])), "edges must hold finite"),
    "edges without end": (asking(0, run_id=FRESH, edges=one(INF, -1, EDGES[0])), "bin edges must be finite"),
    "edges of the round after": (asking(0, run_id=FRESH, edges=EDGES[1]), "edges must be an array of shape (1, 102)"),
    "edges of the round before": (asking(1, run_id=FRESH, edges=EDGES[0]), "edges must be an array of shape (1, 65)"),
    "edges of columns for clip norms": (
        asking(2, run_id=FRESH, edges=EDGES[0]), "edges must be an array of shape (1, 33)"
    ),
    "an edge too few": (asking(2, run_id=FRESH, edges=EDGES[2][:, 1:]), "edges must be an array of shape (1, 33)"),
    "too many edges": (
        asking(0, run_id=FRESH, edges=np.linspace(0, 1, 5000)[None]), "edges must be an array of shape (1, 102)"
    ),
    "edges for two columns": (
        asking(0, run_id=FRESH, edges=np.tile(EDGES[0], (2, 1))), "edges must be an array of shape (1, 102)"
    ),
    "edges in one dimension": (asking(0, run_id=FRESH, edges=EDGES[0][0]), "edges must be an array of shape (1, 102)"),
    "no edges": (asking(0, run_id=FRESH, without=("edges",)), "edges must be an array of shape (1, 102)"),
    "edges of no bins": (asking(0, run_id=FRESH, edges=np.zeros((1, 0))), "edges must be an array of shape (1, 102)"),
    "edges where nothing is counted": (asking(4, edges=EDGES[0]), "round 5 takes no edges"),
    "a drift of gradients": (asking(4, drift=np.zeros((1, 4))), "round 5 takes no drift"),
    "a drift of histograms": (asking(0, run_id=FRESH, drift=np.zeros((1, 4))), "round 1 takes no drift"),
    "a drift of a descent without one": (asking(0, **DESCENT, drift=np.zeros((1, 4))), "round 1 takes no drift"),
    "no drift": (asking(0, **DRIFTING, without=("drift",)), "drift must be an array of shape (1, 4)"),
    "a drift for every site": (asking(0, **DRIFTING, drift=np.zeros((2, 1, 4))), "drift must be an array of shape"),
    "a drift that is no number": (asking(0, **DRIFTING, drift=one(NAN)), "drift must hold finite"),
    "a huge drift": (asking(0, **DRIFTING, drift=one(1e9)), "drift must hold finite"),
    # who and what the spec speaks of
    "a spec with another size": (opening(rows=61), "does not list site 'a' with its 60 rows"),
    "a spec with a size of nothing": (opening(rows=0), "does not list site 'a' with its 60 rows"),
    "a spec with a negative size": (opening(rows=-60), UNREADABLE),
    "a spec with a size beyond all integers": (opening(rows=2**70), UNREADABLE),
    "a spec of another site": (opening(site="b"), "does not list site 'a' with its 60 rows"),
    "a spec with this site twice": (opening(sites=["a", "a"], sizes=[60, 60]), UNREADABLE),
    "a spec of no site": (opening(sites=[], sizes=[]), UNREADABLE),
    "a spec with a size too many": (opening(sizes=[60, 60]), UNREADABLE),
    "a spec of too many sites": (opening(sites=["a", *MANY, "x"], sizes=[60] * 10_001), "10,001 sites; at most"),
    "a range that is not this site's": (opening(bounds={"age": [0, 99], "sex=m": [0, 1]}), r"the range of 'age' is"),
    "a range that is none": (opening(bounds={"age": [NAN, 100], "sex=m": [0, 1]}), "NaN is no number"),
    "a range too few": (opening(bounds={"sex=m": [0, 1]}), "the range of 'age' is None in the spec"),
    "a range too many": (
        opening(bounds={"age": [0, 100], "sex=m": [0, 1], "dose": [-9, 9]}), "the range of 'dose' is"
    ),
    "classes that are not this site's": (
        opening(model="multinomial", classes=["high", "low"]), "classes or the features differ from this site's"
    ),
    "classes in another order": (
        opening(model="multinomial", classes=["low", "high", "middle"]), "classes or the features differ"
    ),
    "classes where there are none": (opening(classes=["0", "1"]), "classes or the features differ"),
    "a level that the site does not have": (opening(features=["sex=x"]), "no column 'sex=x' is declared"),
    "a column that is not there": (opening(features=["age", "income"]), "no column 'income' is declared"),
    "the target among the features": (opening(features=["age", "ill"]), "column 'ill' is the target"),
    "the target's indicator among the features": (
        opening(model="multinomial", features=["age", "kind=low"]), "column 'kind' is the target"
    ),
    "a feature twice": (opening(features=["age", "age"]), "name each feature once"),
    "no feature": (opening(features=[]), "no feature is named"),
    "features as columns, not as indicators": (opening(features=["age", "sex"]), "classes or the features differ"),
    "a target that is not there": (opening(target="income"), "no column 'income' is declared, which is the target"),
    "a target of another kind": (opening(target="cost"), "the logistic model needs"),
    # schedules that cost the site more than the server
    "a thousand million rounds": (opening(options={"K": 10**9}), "option K = 1,000,000,000; at most"),
    "a million rounds of local steps": (
        opening(method="fedavg", options={"R": 10**6, "K": 10**9}), "option K = 1,000,000,000; at most"
    ),
    "many rounds of many steps": (
        opening(method="fedavg", options={"R": 10**4, "K": 10**4}), "a schedule of 100,000,000 entries"
    ),
    "many rounds of many sites": (
        opening(options={"K": 10**4}, sites=["a", *MANY], sizes=[60] * 10_000), "a schedule of 100,000,000 entries"
    ),
    "steps so short that there must be many": (
        opening(method="fednewton", options={"eta": 1e-300}), "local steps, more than 30,000"
    ),
    "steps of nothing": (opening(method="fednewton", options={"eta": 5e-324}), "local steps, more than 30,000"),
    "rounds beyond all integers": (opening(options={"K": 10**4000}), "option K = 1"),
    "no rounds": (opening(options={"K": 0}), "must be a whole number of at least 1"),
    "one and a half rounds": (opening(options={"K": 1.5}), "must be a whole number of at least 1"),
    "rounds in words": (opening(options={"K": "3"}), "must be a whole number of at least 1"),
    "an option that nobody knows": (opening(options={"noise": 0}), "has no option 'noise'"),
    "a step size beyond all doubles": (opening(options={"eta": 10**400}), UNREADABLE),
    "a step size that is no number": (opening(options={"eta": NAN}), "NaN is no number"),
    # bytes
    "nothing": (b"", "not a message of ours"),
    "zeros": (bytes(100), "not a message of ours"),
    "a head that is longer than the message": (b"\0\0\0\0\0\0\1\0{}", "not a message of ours"),
    "a head of two to the sixty-third bytes": (b"\x80" + bytes(7) + b"{}", "a head of 9,223,372,036,854,775,808"),
    "a head that is a list": (raw([1, 2]), "the head is no table"),
    "a head in another encoding": (b"\0\0\0\0\0\0\0\4\xff\xfe\0\0", "not a message of ours"),
    "a deep head": (
        (2 * DEEP).to_bytes(8, "big") + b"[" * DEEP + b"]" * DEEP, "not a message of ours"
    ),
    "an array that is cut short": (asking(4)[:-9], "is cut short"),
    "bytes left over": (asking(4) + b"\0", "bytes are left over"),
    "a shape of more than the memory": (shaped([10**12, 10**12]), "is cut short"),
    "a shape of less than nothing": (shaped([-1, -8]), "has no proper shape"),
    "a shape of four dimensions": (shaped([1, 1, 1, 1]), "has no proper shape"),
    "an empty array of endless width": (shaped([0, 10**30]), "not a message of ours"),
}  # fmt: skip


def test_what_tricks_change_are_honest_messages() -> None:
    """So that a trick differs from what a vault answers in nothing but what it says."""
    for number in range(6):
        assert asking(number) == encode(honest(number))
    assert opening() == encode(OpenRun(NEW, proposed(), None))


def test_a_round_takes_exactly_what_its_step_uses() -> None:
    """Scales are sent from the round after they were set on, and so is the clip norm."""
    scales = {"centre": (3,), "scale": (3,), "target_scale": (2,)}
    shapes = [{name: array.shape for name, array in honest(number).values.items()} for number in range(6)]
    later = {"params": (1, 4), **scales, "clip_norm": (1,)}
    assert shapes == [
        {"params": (1, 4), "edges": (1, len(SIGNED_GRID))},
        {"params": (1, 4), "edges": (1, FINE_BINS + 1)},
        {"params": (1, 4), **scales, "edges": (1, len(SCORE_GRID))},
        later, later, later,
    ]  # fmt: skip
    for known in (GIVEN, DESCENT):  # a clip norm that the spec gives is not sent
        assert set(honest(0, spec=known["spec"]).values) == {"params"}
    assert set(honest(0, spec=DRIFTING["spec"]).values) == {"params", "drift"}


def prepare(ask: Callable[[bytes], bytes]) -> None:
    """Four honest rounds of a run with six, and other runs that are opened."""
    for run in ({"run_id": FRESH, "spec": proposed()}, GIVEN, DESCENT, DRIFTING, RIDGE):
        reply = read(ask(encode(OpenRun(run["run_id"], run["spec"], None))))
        assert reply == RunOpened("a", run["run_id"])
    for number in range(4):
        values_of(ask(asking(number)))


@pytest.fixture(scope="module")
def attacked(nursery: Nursery, shared: Path) -> Iterator[Path]:
    """A vault process in the middle of a run; its folder."""
    folder = shared / "attacked"
    process = nursery.serve(write_site(folder, "a", FRAMES["a"], **ALLOWED))
    prepare(lambda body: call(folder, body))
    yield folder
    process.kill()


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_refused_with_a_reason_and_costs_and_tells_nothing(attacked: Path, trick: str) -> None:
    body, reason = TRICKS[trick]
    before, started = (attacked / "ledger.sqlite").read_bytes(), time.monotonic()
    reply = call(attacked, body)
    message = read(reply)
    assert isinstance(message, Refusal) and message.site == "a"
    assert reason in message.reason
    assert len(reply) < 700
    assert (attacked / "ledger.sqlite").read_bytes() == before
    assert time.monotonic() - started < 20  # a hundredth of a second on an idle machine


def test_a_schedule_that_costs_more_than_was_agreed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the site would allow as much: a method that is installed here may be wrong."""
    real = METHODS["fedsgd"].schedule
    monkeypatch.setattr(METHODS["fedsgd"], "schedule", lambda self, c: real(self, replace(c, mu=1.5 * c.mu)))
    vault = Vault(Policy.read(write_site(folder, "a", FRAMES["a"], **ALLOWED)))
    assert "method 'fedsgd' announces releases that cost mu = 2." in refusal(vault.handle(opening(mu=2.0)))
    monkeypatch.undo()
    assert not is_refused(vault.handle(opening(mu=2.0)))
    vault.close()


def test_subnormal_params_are_answered_as_any_others(attacked: Path) -> None:
    tiny = {"run_id": "1" * 32, "params": one(5e-324, 2, np.full((1, 4), -1e-310))}
    reply = answered(call(attacked, asking(0, **{**GIVEN, **tiny})))
    assert (reply.site, reply.run_id, reply.round) == ("a", "1" * 32, 0)
    with LedgerReader(attacked / "ledger.sqlite") as records:
        (entry,) = records.entries("1" * 32)
        assert entry.receipt == reply.receipt
        assert entry.mu == pytest.approx(records.spent_mu("1" * 32)) and not entry.failed


def test_a_query_that_cannot_be_answered_is_charged_for_and_stays_so(attacked: Path) -> None:
    """Noise of no size, whatever the rows are: nothing may leave, and what failed is not tried again."""
    spec = proposed(method="fedavg", options={"K": 1, "R": 1, "eta": 1e-290}, settings=PLAIN)
    body = asking(0, run_id="2" * 32, spec=spec)
    first = call(attacked, body)
    assert refusal(first) == "round 1 failed inside the site, and was charged"
    assert call(attacked, body) == first
    with LedgerReader(attacked / "ledger.sqlite") as records:
        (entry,) = records.entries("2" * 32)
        assert entry.failed and records.spent_mu("2" * 32) == pytest.approx(2.0)


@pytest.mark.filterwarnings("ignore:overflow")
def test_refusals_do_not_depend_on_rows(folder: Path) -> None:
    """The same tricks at two vaults that differ in one row: the same bytes. Extreme values are within the ranges."""
    other = FRAMES["a"].copy()
    other.loc[7] = {"age": 100.0, "dose": -1e100, "sex": "m", "ill": 1, "visits": 10**9, "cost": 1e100, "kind": "low"}
    twins = [
        Vault(Policy.read(write_site(folder / name, "a", frame, **ALLOWED)))
        for name, frame in (("one", FRAMES["a"]), ("two", other))
    ]
    for vault in twins:
        prepare(vault.handle)
    for trick, (body, _) in TRICKS.items():
        replies = [vault.handle(body) for vault in twins]
        assert replies[0] == replies[1], trick
    spec = proposed(settings=PLAIN, mu=10.0, options={"K": 1})
    for number in range(30):  # until the budget is gone
        body = asking(0, spec=spec, run_id=f"{number:08x}")
        replies = [vault.handle(body) for vault in twins]
        refused = [is_refused(reply) for reply in replies]
        assert refused[0] == refused[1]
        assert not refused[0] or replies[0] == replies[1]
    assert refused[0] and refusal(replies[0]) == "the site's budget does not allow this release"
    for vault in twins:
        assert vault.ledger.spent_mu() <= 50 * (1 + 1e-9)
        vault.close()


def test_rows_are_not_read_for_a_release_that_the_budget_does_not_allow(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a refusal takes could tell of rows, and refusals are free: a hostile server may time any number."""
    vault = Vault(Policy.read(write_site(folder, "a", FRAMES["a"], budget={"lifetime": 2.0, "run": 2.0})))
    readings = []
    rows = Vault._rows
    monkeypatch.setattr(Vault, "_rows", lambda self, *given: (readings.append(given), rows(self, *given))[1])
    plain = {**PLAIN, "budget_schedule": "uniform"}
    dear = {"run_id": "8" * 32, "spec": proposed(settings=plain, mu=1.9, options={"K": 1})}
    long = {"run_id": "9" * 32, "spec": proposed(settings=plain, mu=1.0, options={"K": 4})}
    for run, number in ((dear, 0), (long, 0), (long, 1)):
        reply = vault.handle(asking(number, **run))
    vault.close()
    assert "budget does not allow" in refusal(reply)
    assert len(readings) == 2


CHANGED = {
    "clip_norm": {"clip_norm": norm(1.6)}, "scaling": {"scale": SCALES["scale"] * 2},
}  # fmt: skip


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("value", CHANGED)
def test_a_public_value_stays_what_it_was_when_it_was_first_used(folder: Path, value: str, restart: bool) -> None:
    """In whatever round that was: the clip norm's histogram is the first to use scales, and none need be asked."""
    path, first = write_site(folder, "a", FRAMES["a"], **ALLOWED), 2 if value == "scaling" else 5
    vault = Vault(Policy.read(path))
    values_of(vault.handle(asking(first, **CHANGED[value])))
    if restart:
        vault.close()
        vault = Vault(Policy.read(path))
    spent = vault.ledger.spent_mu()
    for number in (3, 4):
        assert f"the {value} has changed since an earlier round" in refusal(vault.handle(asking(number)))
    assert vault.ledger.spent_mu() == spent
    values_of(vault.handle(asking(4, **CHANGED[value])))
    values_of(vault.handle(asking(3, run_id=NEW)))  # other runs have values of their own
    vault.close()


def test_scales_and_clip_norms_of_a_run_stay_those_of_its_first_rounds_also_after_a_restart(folder: Path) -> None:
    path = write_site(folder, "a", FRAMES["a"], **ALLOWED)
    with contextlib.closing(Vault(Policy.read(path))) as vault:
        prepare(vault.handle)
    with contextlib.closing(Vault(Policy.read(path))) as vault:
        tricks = (
            "another clip norm than before", "other scales than before", "a scale that is other by one bit",
            "a round again with other params",
        )  # fmt: skip
        for trick in tricks:
            body, reason = TRICKS[trick]
            assert reason in refusal(vault.handle(body))
        values_of(vault.handle(asking(4)))


def test_runs_that_a_vault_has_forgotten_go_on_as_they_were(folder: Path) -> None:
    with contextlib.closing(Vault(Policy.read(write_site(folder, "a", FRAMES["a"], **ALLOWED)))) as vault:
        prepare(vault.handle)
        for number in range(vault_module.MAX_CACHED_RUNS + 5):
            released(vault, f"{number:08x}", spec=proposed(settings=PLAIN, mu=0.1))
        assert RUN not in vault.runs and len(vault.runs) == vault_module.MAX_CACHED_RUNS
        assert "clip_norm has changed" in refusal(vault.handle(asking(4, clip_norm=norm(1.6))))
        values_of(vault.handle(asking(4)))


# -- hostile bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 65 * 2**20])
def test_a_message_that_claims_to_be_huge_is_refused_before_it_is_read(attacked: Path, length: int) -> None:
    with connected(attacked) as opened:
        opened.sendall(length.to_bytes(8, "big"))
        reply = connection.receive(opened)
    assert f"a message of {length:,} bytes; the most is" in refusal(reply)


def test_messages_that_end_early_and_callers_that_say_nothing_hold_nobody_up(attacked: Path) -> None:
    before = (attacked / "ledger.sqlite").read_bytes()
    silent = [connected(attacked) for _ in range(10)]
    for cut in (1, 7, 8, 9, 500):
        with connected(attacked) as opened:
            body = asking(4)
            opened.sendall((len(body).to_bytes(8, "big") + body)[:cut])
            opened.shutdown(socket.SHUT_WR)
            assert refusal(connection.receive(opened)) == "the message ended early"
    assert read(call(attacked, encode(Describe()))) == SiteDescription("a", 60, False)
    for opened in silent:
        opened.close()
    assert (attacked / "ledger.sqlite").read_bytes() == before


def test_one_connection_carries_many_requests_and_its_end_is_no_error(attacked: Path) -> None:
    with connected(attacked) as opened:
        for _ in range(3):
            connection.send(opened, encode(Describe()))
            assert read(connection.receive(opened) or b"") == SiteDescription("a", 60, False)


def test_callers_beyond_the_most_are_hung_up_on_and_the_ledger_goes_on(attacked: Path) -> None:
    """Each may hold a whole message in memory, and files that the ledger needs."""
    crowd = [connected(attacked) for _ in range(serving.MAX_CONNECTIONS + 40)]
    with pytest.raises(OSError):
        call(attacked, encode(Describe()))
    for opened in crowd:
        opened.close()
    body = asking(0, **{**GIVEN, "run_id": "3" * 32})
    until = time.monotonic() + vaults.PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            values_of(call(attacked, body))
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the vault did not come back")


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([2**63, -(2**64), 1e308, 5e-324, "gradient", "histogram", "Infinity", [], {}, [[]], "\ud800"]),
)  # fmt: skip
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
FIELDS = [  # of settings, options and params
    "clip_norm", "scaling", "ridge", "eta", "clip_rule", "aggregation_weights", "participation", "K", "dispersion"
]  # fmt: skip
CHEAP = [asking(number, spec=proposed(mu=0.3), run_id=f"{run:032x}") for run in range(3) for number in range(6)] + [
    encode(Describe()),
    encode(OpenRun(NEW, proposed(mu=0.3), None)),
    encode(OpenRun(NEW, proposed(**COUNTS, mu=0.3, params={"dispersion": 0.5}), None)),
]
MOVED = ["edges", "drift", "clip_norm", "centre", "scale", "target_scale", "rows"]  # names that values may be given


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Bytes, and messages that are almost right."""
    kind = draw(st.sampled_from(["bytes", "head", "spec", "arrays", "names", "honest", "cut", "flipped"]))
    if kind == "bytes":
        return draw(st.binary(max_size=200))
    body = draw(st.sampled_from(CHEAP))
    head, arrays = unpack(body)
    if kind == "head":
        head[draw(st.sampled_from([*head, "mus", "seed"]))] = draw(JSON)
    elif kind == "spec" and "spec" in head:
        content = json.loads(head["spec"])
        for field in draw(st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=2)):
            inner = content[field]
            if isinstance(inner, dict) and draw(st.booleans()):
                inner[draw(st.sampled_from([*inner, *FIELDS]))] = draw(JSON)
            else:
                content[field] = draw(JSON)
        head["spec"], head["run_id"] = json.dumps(content), draw(st.sampled_from([NEW, RUN, FRESH]))
    elif kind == "arrays" and arrays:
        name = draw(st.sampled_from(sorted(arrays)))
        size = arrays[name].size
        numbers = draw(st.lists(st.floats(), min_size=1, max_size=size + 1))
        arrays[name] = np.resize(numbers, arrays[name].shape) if draw(st.booleans()) else np.array(numbers)
    elif kind == "names" and arrays:
        arrays[draw(st.sampled_from(MOVED))] = arrays.pop(draw(st.sampled_from(sorted(arrays))))
    elif kind == "cut":
        return body[: draw(st.integers(0, len(body)))]
    elif kind == "flipped":
        changed = bytearray(body)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    return raw(head, arrays)


@pytest.fixture(scope="module")
def poor(shared: Path) -> Iterator[Vault]:
    """A vault with a budget that ends."""
    vault = Vault(Policy.read(write_site(shared / "poor", "a", FRAMES["a"], budget={"lifetime": 0.4, "run": 0.3})))
    yield vault
    vault.close()


@given(body=messages())
def test_whatever_bytes_come_the_reply_is_well_formed_and_the_budget_holds(poor: Vault, body: bytes) -> None:
    message = read(poor.handle(body))
    assert getattr(message, "site", None) == "a"
    assert poor.ledger.spent_mu() <= 0.4 * (1 + 1e-9)
    assert "an error inside the vault" not in getattr(message, "reason", "")


# -- numbers at the edge ---------------------------------------------------------------------------------------

EXTREME = {"low": -1e100, "high": 1e100}
EDGE_COLUMNS: dict[str, dict[str, Any]] = {
    "x": EXTREME, "z": EXTREME, "u": {}, "v": {}, "cost": EXTREME, "fee": {},
    "visits": {"low": 0, "high": 1e100, "whole": True}, "ill": vaults.COLUMNS["ill"], "kind": vaults.COLUMNS["kind"],
}  # fmt: skip
EDGE_ROWS = 3
FEATURE = st.sampled_from([0.0, 1.0, -1.0, 0.37, -2.5, 1e-30, 5e-324, -1e-310, 1e30, -1e30, 1e100, -1e100])
EDGE_PARAM = st.sampled_from([0.0, 0.1, -1.0, 3.0, 1e6, -1e6, 5e-324, -1e-310, 1e-30, 700.0])
CLIP_NORM = st.sampled_from([1e-9, 1e-3, 1.0, 7.5, 1e9])
ROUNDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient": ("fedsgd", {"K": 1}), "descent": ("fedavg", {"K": 1, "R": 1, "eta": 0.7}),
    "drifting descent": ("scaffold", {"K": 1, "R": 1, "eta": 0.7}), "newton parts": ("fedirls", {"R": 1}),
    "moments": ("fedstats", {}), "histogram": ("fedsgd", {"K": 1}),
    "moments of features": ("fednewton", {"curvature": "features", "steps": 1}),
}  # fmt: skip
TAKEN = {"moments": ["linear"], "moments of features": ["logistic", "multinomial"]}  # else any model


@pytest.fixture(scope="module")
def twins(shared: Path) -> Iterator[list[Vault]]:
    """Two vaults that take seeds, whose noise cancels, and one that draws its own."""
    one = {**dict.fromkeys(EDGE_COLUMNS, 0), "kind": "low"}
    frame = pd.DataFrame(one, index=range(EDGE_ROWS))
    opened = []
    for name in ("one", "two", "own"):
        changed = {"budget": {"lifetime": 1e6, "run": 10.0}, **({} if name == "own" else INSECURE)}
        path = write_site(shared / "twins" / name, "a", frame)
        path.write_text(vaults.toml({**vaults.policy_tables("a", **changed), "columns": EDGE_COLUMNS}))
        opened.append(Vault(Policy.read(path)))
    yield opened
    for vault in opened:
        vault.close()


@st.composite
def edge_rows(draw: st.DrawFn, count: int) -> dict[str, np.ndarray]:
    def column(strategy: st.SearchStrategy[float]) -> np.ndarray:
        return np.array([draw(strategy) for _ in range(count)], dtype=float)

    return {
        **{name: column(FEATURE) for name in ("x", "z", "u", "v", "cost", "fee")},
        "ill": column(st.sampled_from([0.0, 1.0])), "visits": column(st.sampled_from([0.0, 1.0, 7.0, 1e15, 1e100])),
        "kind": column(st.sampled_from([0.0, 2.0])),
    }  # fmt: skip


@st.composite
def edge_specs(draw: st.DrawFn, kind: str) -> str:
    """A spec for rows at the edge; with open columns the server sends their scales."""
    method, options = ROUNDS[kind]
    model = draw(st.sampled_from(TAKEN.get(kind, sorted(vaults.TARGETS))))
    is_open = draw(st.booleans())
    settings = {
        "clip_norm": "private" if kind == "histogram" else draw(CLIP_NORM | st.just("private")),
        "scaling": draw(st.sampled_from(["private", "none"] if is_open else ["private", "none", "bounds"])),
        "fit_intercept": draw(st.booleans()), "clip_rule": draw(st.sampled_from(["consistent", "norm"])),
        "ridge": draw(st.sampled_from([0.0, 1e-3, 1e9, 1e300])),
    }  # fmt: skip
    features, changed = ["u", "v"] if is_open else ["x", "z"], {}
    if model == "linear":
        changed["target"] = "fee" if is_open else "cost"
    if model == "negative-binomial":
        changed["params"] = {"dispersion": draw(st.sampled_from([1e-3, 0.5, 1.0, 100.0]))}
    bounded = [] if is_open else [*features, *(["cost"] if model == "linear" else [])]
    return spec_of(features=features, options=options, settings=settings, method=method, model=model, rows=EDGE_ROWS,
                   bounds={name: [-1e100, 1e100] for name in bounded}, **changed)  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", ROUNDS)
@given(data=st.data())
def test_whatever_numbers_come_a_changed_row_moves_a_reply_by_no_more_than_its_noise_covers(
    twins: list[Vault], data: st.DataObject, kind: str
) -> None:
    """With one seed the noise of two vaults cancels, so what is left is how far one row moved what the noise hides."""
    draw = data.draw
    rows, changed = draw(edge_rows(EDGE_ROWS)), draw(edge_rows(1))
    for vault in twins:
        vault.columns = {name: values.copy() for name, values in rows.items()}
        vault.data.clear()
    for vault in twins[1:]:
        for name, values in changed.items():
            vault.columns[name][0] = values[0]
    text = draw(edge_specs(kind))
    spec = RunSpec.from_json(text)
    steps = spec.schedule.steps
    first = len(steps) - len(spec.schedule.of("estimation")) - len(spec.schedule.of("standard errors"))
    number = draw(st.integers(0, first - 1)) if kind == "histogram" else first  # histograms come before all else
    step, shape = steps[number], spec.context.shape
    scale = st.sampled_from([1.0, 1e-30, 1e30, 3.0])
    values = {"params": np.array([draw(EDGE_PARAM) for _ in range(math.prod(shape))]).reshape(shape)}
    clip_norm = spec.settings.clip_norm
    if "scaling" in step.uses:
        values["centre"] = np.array([draw(st.sampled_from([0.0, 1.0, -1e30, 1e30, 5e-324])) for _ in range(2)])
        values["scale"] = np.array([draw(scale) for _ in range(2)])
        linear = spec.model.name == "linear"
        values["target_scale"] = target(draw(st.sampled_from([0.0, -1e30])), draw(scale)) if linear else target(0, 1)
    if "clip_norm" in step.uses:
        clip_norm = draw(CLIP_NORM)
        values["clip_norm"] = norm(clip_norm)
    if "edges" in step.uses:
        groups, count = step.query.edges_shape()
        values["edges"] = np.sort(
            [[draw(FEATURE | st.just(1.7e308)) for _ in range(6)] * count for _ in range(groups)], axis=1
        )[:, :count]
    if "drift" in step.uses:
        values["drift"] = np.array([draw(EDGE_PARAM) for _ in range(math.prod(shape))]).reshape(shape)
    request = replace(honest(number, spec=text, run_id=f"{len(twins[0].ledger):032x}"), values=values)
    replies = [vault.handle(encode(replace(request, seed64=5))) for vault in twins[:2]]
    own = twins[2].handle(encode(request))
    if any(map(is_refused, replies)):
        assert replies[0] == replies[1] == own
        assert "ridge is too large" in refusal(own) or "failed" in refusal(own)
        return
    answers = [values_of(reply) for reply in [*replies, own]]
    assert step.query.name == request.query == kind.split(" of ")[0].split(" ", kind.count("drifting"))[-1]
    clipping = step.query.clipping(spec.clipping(1.0 if isinstance(clip_norm, str) else float(clip_norm)), spec.model)
    limits = step.query.sensitivity(np.array([float(EDGE_ROWS)]), clipping)[:, 0]
    move, size = answers[0] - answers[1], math.prod(shape)
    parts = [move[:size], move[size:]] if kind == "newton parts" else [move]
    rounding = 1e-15 * len(move) * max(np.abs(answers[0]).max(), np.abs(answers[1]).max())
    for part, limit in zip(parts, limits, strict=True):
        assert np.linalg.norm(part) <= limit * (1 + 1e-9) + rounding
