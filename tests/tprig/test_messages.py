from __future__ import annotations

import typing

import msgspec
import pytest

from tprig import evidence, messages

KINDS = [*typing.get_args(messages.FromTemplate), *typing.get_args(messages.FromHost)]


def test_every_message_has_a_tag_of_its_own() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_message_has_fields_that_nobody_knows(kind: type[msgspec.Struct]) -> None:
    assert kind.__struct_config__.forbid_unknown_fields
    assert kind.__struct_config__.frozen


def test_records_of_the_evidence_are_messages_as_they_are() -> None:
    from_host = set(typing.get_args(messages.FromHost))
    assert set(typing.get_args(evidence.OutputRecord)) <= from_host
    assert set(typing.get_args(evidence.StepRecord)) <= from_host
