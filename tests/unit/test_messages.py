"""Typed messages: whatever is encoded is decoded, and nothing else is."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedmest.runs import messages
from fedmest.runs.messages import Malformed, Message, RoundReply, RoundRequest, decode, encode, pack

text = st.text(max_size=40)
number = st.integers(0, 2**64 - 1)
values = st.dictionaries(text, arrays.arrays("f8", arrays.array_shapes(min_dims=0, max_dims=3, max_side=4)), max_size=3)
FIELDS: dict[Any, st.SearchStrategy[Any]] = {
    str: text, int: number, bool: st.booleans(), int | None: st.none() | number, messages.Arrays: values,
}  # fmt: skip
any_message = st.one_of(
    [st.builds(kind, **{f.name: FIELDS[f.type] for f in fields(kind)}) for kind in messages.KINDS.values()]
)


def content(message: Message) -> tuple[str, dict[str, Any]]:
    found = {f.name: getattr(message, f.name) for f in fields(message)}
    found["values"] = {k: (v.shape, v.tobytes()) for k, v in found.get("values", {}).items()}
    return message.kind, found


@given(any_message)
def test_a_message_is_what_it_was_and_equal_ones_have_equal_bytes(message: Message) -> None:
    body = encode(message)
    assert content(decode(body)) == content(message)
    assert encode(decode(body)) == body


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(body)


@given(any_message, st.data())
def test_a_changed_byte_makes_another_message_or_none(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode(message))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    try:
        decoded = decode(bytes(body))
    except Malformed:
        return
    assert isinstance(decoded, Message)
    assert encode(decoded)  # whatever came through is a message in every field


REQUEST = RoundRequest("a" * 32, "{}", None, 3, "gradient", {"params": np.zeros((1, 2))})


@pytest.mark.parametrize("name", [f.name for f in fields(RoundRequest) if f.name != "values"])
@pytest.mark.parametrize("value", [1.5, [], {}, True, -1, 2**64, "x" * 2_000_000], ids=lambda value: str(value)[:8])
def test_a_field_of_another_type_or_size_is_refused(name: str, value: Any) -> None:
    head = {"kind": REQUEST.kind, **{f.name: getattr(REQUEST, f.name) for f in fields(REQUEST) if f.name != "values"}}
    with pytest.raises(Malformed, match=name):
        decode(pack({**head, name: value}, REQUEST.values))
    with pytest.raises(Malformed, match=f"{name}' is missing"):
        decode(pack({key: content for key, content in head.items() if key != name}, REQUEST.values))


def test_fields_that_nobody_knows_are_refused() -> None:
    head, body = json.loads('{"kind": "describe"}'), encode(replace(REQUEST, round=4))
    with pytest.raises(Malformed, match="unknown field 'more'"):
        decode(pack({**head, "more": 1}))
    with pytest.raises(Malformed, match="unknown field 'params'"):
        decode(pack(head, {"params": np.zeros(2)}))
    with pytest.raises(Malformed, match="left over"):
        decode(body + b"\0")
    with pytest.raises(Malformed, match="no such message"):
        decode(pack({"kind": "shut down"}))


def test_a_reply_carries_its_values() -> None:
    reply = RoundReply("north", "a" * 32, 2, "receipt", {"values": np.array([1.0, -2.5])})
    found = decode(encode(reply))
    assert isinstance(found, RoundReply)
    np.testing.assert_array_equal(found.values["values"], [1.0, -2.5])
