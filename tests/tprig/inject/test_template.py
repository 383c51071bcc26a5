"""The warm template: what it tells its client, in words that the client decodes."""

from __future__ import annotations

import signal

import msgspec

from tests.tprig.inject.foreign.client import Foreign
from tprig import messages

TAGS = {kind.__struct_config__.tag for kind in messages.FromTemplate.__args__}


def test_it_is_warm_with_the_vllm_that_it_imported(foreign: Foreign) -> None:
    (told,) = foreign("templates", "start")
    warm = msgspec.convert(told, messages.Warm)
    assert (warm.vllm_version, warm.vllm_path) == tuple(foreign.warm.values())
    assert warm.vllm_path.endswith("/vllm")


def test_an_interpreter_without_vllm_says_why(foreign: Foreign) -> None:
    (told,) = foreign("templates", "start", error="No module named 'vllm'")
    assert msgspec.convert(told, messages.FromTemplate) == messages.Failed(
        error="ImportError", message="No module named 'vllm'"
    )


def test_hosts_are_forked_and_their_ends_told(foreign: Foreign) -> None:
    """Each leads a session of its own, whatever it does; the template lives until it is left."""
    hosts: list[dict[str, object]] = [
        {"engine": "e1", "code": 7},
        {"engine": "e2", "killed": True},
        {"engine": "e3", "raise": True},
        {"engine": "e4", "code": 0},
    ]
    answer = foreign("templates", "serve", hosts=hosts)
    told = [msgspec.convert(message, messages.FromTemplate) for message in answer["told"]]
    forked = [message for message in told if isinstance(message, messages.Forked)]
    ended = {message.pid: message.code for message in told if isinstance(message, messages.Ended)}
    assert [message.engine for message in forked] == ["e1", "e2", "e3", "e4"]
    assert [ended[message.pid] for message in forked] == [7, -signal.SIGKILL, 1, 0]
    assert answer["echoed"] == [{"request": hosts[i], "session": True} for i in (0, 3)]
    assert answer["code"] == 0


def test_these_are_all_the_messages_that_a_template_sends() -> None:
    assert {"warm", "failed", "forked", "ended"} == TAGS
