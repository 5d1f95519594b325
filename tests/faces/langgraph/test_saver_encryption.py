"""`HoldallSaver` with a cipher, and on logs with damaged bytes."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from cryptography.fernet import InvalidToken
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdall import errors
from holdall.faces.langgraph import HoldallSaver
from holdall.faces.langgraph.checkpoints import log
from holdall.faces.langgraph.checkpoints.known_logs import Address
from holdall.faces.langgraph.checkpoints.log import Codec, Log
from support.langgraph_threads import FernetCipher, chat, put_values, say, size_of_log, texts, thread


def test_an_encrypted_thread_has_no_plain_text_and_cannot_be_moved(tmp_path: Path) -> None:
    """langgraph#9004: a ciphertext could be moved to another thread unnoticed."""
    serde = EncryptedSerializer(FernetCipher())
    path = tmp_path / "secret.db"
    with HoldallSaver(str(path), serde=serde) as saver:
        graph = chat(saver)
        say(graph, "t1", "the password is swordfish", user_id="u")
        say(graph, "t1", "large " + "swordfish " * 2000)
        say(graph, "t2", "hello")
        assert len(texts(graph, "t1")) == 4
        saver.known_logs.clear()
        assert len(texts(graph, "t1")) == 4
        assert saver.threads(prefix="t1")[0].preview is None
        saver.copy_thread("t1", "copy")
        assert texts(graph, "copy") == texts(graph, "t1")
        saver.prune(["t1"])
        assert texts(graph, "t1") == texts(graph, "copy")

        files = saver.store.files((".holdall.threads", "t2"))
        files.write("/main/log", saver.store.files((".holdall.threads", "t1")).read("/main/log"))
        saver.known_logs.clear()
        with pytest.raises(errors.Corrupt, match="another place"):
            saver.get_tuple(thread("t2"))
    for file in tmp_path.iterdir():
        assert b"swordfish" not in file.read_bytes()


def rewrite_log(saver: HoldallSaver, source: Address, target: Address, edit: Callable[[bytes, Any], Any]) -> None:
    """Write the frames of a log to another one, or to the same, as an attacker without the key can.

    `edit` takes the kind and the payload of a frame, and returns its new payload.
    """
    files = saver.store.files((*saver.namespace, source.thread_id))
    content, frames, at = files.read(source.path), [], 0
    while at < len(content):
        _, length, id_length = log._header.unpack_from(content, at)
        kind, start = content[at + 1 : at + 2], at + log._header.size + id_length
        payload = log.decompress_payload(content[start : start + length])
        edited = edit(kind, msgspec.msgpack.decode(payload))
        frames.append(log.encode_frame(kind, content[at + log._header.size : start], edited))
        at = start + length
    files.write(target.path, b"".join(frames))
    saver.known_logs.clear()


def keep_frame(kind: bytes, payload: Any) -> Any:
    return payload


def swap_pointers(kind: bytes, payload: Any) -> Any:
    if kind == log.CHECKPOINT:
        pointers = payload[3]
        pointers["a"], pointers["b"] = pointers["b"], pointers["a"]
    return payload


def swap_writes(kind: bytes, payload: Any) -> Any:
    if kind == log.WRITES:
        payload[2] = [[number, {"a": "b", "b": "a"}[channel], part] for number, channel, part in payload[2]]
    return payload


@pytest.mark.parametrize(
    "values",
    [
        {"a": "small", "b": "other"},
        {"a": "in a frame " * 20, "b": "of its own " * 20},
        {"a": ["a list"], "b": ["another"]},
        {"a": ["large" * 2000], "b": ["larger" * 2000]},
    ],
    ids=["small", "value", "list", "large"],
)
def test_a_ciphertext_cannot_be_moved_to_another_channel_or_subgraph(
    saver: HoldallSaver, values: dict[str, Any]
) -> None:
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    config = put_values(secret, values)
    secret.put_writes(config, list(values.items()), "task")
    main, sub = Address("t", ""), Address("t", "sub")
    rewrite_log(secret, main, main, keep_frame)  # which is no attack
    found = secret.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values
    assert found.pending_writes == [("task", channel, value) for channel, value in values.items()]
    for target, edit in ((sub, keep_frame), (main, swap_pointers), (main, swap_writes)):
        rewrite_log(secret, main, target, edit)
        with pytest.raises(errors.Corrupt, match="another place"):
            secret.get_tuple(thread("t", checkpoint_ns=target.checkpoint_ns))
        with pytest.raises(errors.Corrupt, match="another place"):
            list(secret.list(thread("t", checkpoint_ns=target.checkpoint_ns)))
        if target == main:
            rewrite_log(secret, main, main, edit)  # back


def test_large_ciphertexts_of_one_channel_cannot_be_exchanged(saver: HoldallSaver) -> None:
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    config, main = put_values(secret, {"a": ["one" * 2000, "two" * 2000]}), Address("t", "")
    large: list[Any] = []

    def collect(kind: bytes, payload: Any) -> Any:
        if kind == log.VALUE and payload[2] is None:
            large.append(payload)
        return payload

    def exchange(kind: bytes, payload: Any) -> Any:
        return large.pop() if kind == log.VALUE and payload[2] is None else payload

    rewrite_log(secret, main, main, collect)
    assert len(large) >= 2
    rewrite_log(secret, main, main, exchange)
    with pytest.raises(errors.Corrupt, match="replaced"):
        secret.get_tuple(config)


def test_a_thread_that_was_not_encrypted_is_read_and_goes_on_encrypted(saver: HoldallSaver) -> None:
    """As LangGraph's own savers do it: a cipher is set for an app that has threads already."""
    say(chat(saver), "t", "large " + "old " * 2000)
    secret = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()))
    graph = chat(secret)
    say(graph, "t", "swordfish")
    before = texts(graph, "t")
    assert (len(before), before[2]) == (4, "swordfish")
    assert b"swordfish" not in saver.store.files((*saver.namespace, "t")).read("/main/log")
    secret.copy_thread("t", "copy")
    secret.prune(["t"])
    assert texts(graph, "copy") == texts(graph, "t") == before


def test_a_put_that_fails_leaves_no_key_behind_that_is_not_stored(saver: HoldallSaver) -> None:
    say(chat(saver), "t", "old")
    serde = EncryptedSerializer(FernetCipher())
    secret, values = HoldallSaver(saver.store, serde=serde), {"list": ["large" * 2000]}
    assert secret.get_tuple(thread("t")) is not None
    with pytest.raises(TypeError):
        put_values(secret, {"list": [object()]})
    config = put_values(secret, values)
    found = HoldallSaver(saver.store, serde=serde).get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == values


def test_another_key_is_refused_and_nobody_is_advised_to_delete_the_thread(saver: HoldallSaver) -> None:
    class Cipher(FernetCipher):
        """Raises the error of LangGraph's own cipher, AES of pycryptodome."""

        def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
            try:
                return super().decrypt(ciphername, ciphertext)
            except InvalidToken as error:
                raise ValueError("MAC check failed") from error

    say(chat(HoldallSaver(saver.store, serde=EncryptedSerializer(Cipher()))), "t", "hello")
    other = HoldallSaver(saver.store, serde=EncryptedSerializer(Cipher()))
    with pytest.raises(errors.InvalidInput, match=r"another key: ValueError\(.MAC check failed.\); pass as serde="):
        other.get_tuple(thread("t"))


def test_a_damaged_log_is_corrupt(saver: HoldallSaver) -> None:
    say(chat(saver), "t", "hello")
    files = saver.store.files((*saver.namespace, "t"))
    content = files.read("/main/log")
    frame = min(Log(Codec(JsonPlusSerializer(), "t", ""), content)._checkpoints.values())
    _, size, id_size = log._header.unpack_from(content, frame)
    id, payload, end = (frame + log._header.size + extra for extra in (0, id_size, id_size + size))
    no_text = (b"\xd9" + bytes([min(size - 2, 255)])).ljust(size, b"\xfe")
    for damaged in (
        content[1:],
        content[:-1],
        content[:id] + b"\xfe" * id_size + content[payload:],
        content[:payload] + b"\xc1" * size + content[end:],  # what is not compressed
        content[:payload] + no_text + content[end:],
    ):
        files.write("/main/log", damaged)
        saver.known_logs.clear()
        with pytest.raises(errors.Corrupt, match="damaged at byte"):
            list(saver.list(thread("t")))


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
def test_whatever_is_damaged_in_a_log_is_an_error_of_holdall(saver: HoldallSaver, is_encrypted: bool) -> None:
    saver = HoldallSaver(saver.store, serde=EncryptedSerializer(FernetCipher()) if is_encrypted else None)
    for text in ("hello", "large " * 2000, "bye"):
        say(chat(saver), "t", text)
    files, random = saver.store.files((*saver.namespace, "t")), Random(0)
    content, refused = files.read("/main/log"), 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[random.randrange(len(content))] = random.randrange(256)
        files.write("/main/log", bytes(damaged))
        saver.known_logs.clear()
        calls: list[Callable[[], object]] = [
            lambda: list(saver.list(thread("t"))),
            lambda: saver.get_tuple(thread("t")),
            lambda: saver.get_delta_channel_history(config=thread("t"), channels=["messages"]),
            lambda: saver.retain(keep_last=1, older_than=3600),
            lambda: saver.delete_for_runs(["none"]),
            lambda: saver.retain(keep_last=8),
        ]
        for call in calls:
            try:
                call()
            except (errors.Corrupt, errors.InvalidInput):
                refused += 1
    assert refused > 50


def test_a_log_that_was_compressed_with_the_first_dictionary_is_read_and_goes_on(saver: HoldallSaver) -> None:
    home = (*saver.namespace, "t")
    old = (Path(__file__).parents[2] / "fixtures" / "thread.log").read_bytes()
    saver.store.put(home, "generation", {}, search_fields=False)
    saver.store.files(home).write("/main/log", old)
    graph, said = chat(saver), ["hello", "answer to hello", "and again", "answer to and again"]
    assert texts(graph, "t") == said
    assert [found.metadata["step"] for found in saver.list(thread("t"))] == [4, 3, 2, 1, 0, -1]
    say(graph, "t", "at last")
    saver.known_logs.clear()
    assert texts(graph, "t") == [*said, "at last", "answer to at last"]
    assert saver.store.files(home).read("/main/log").startswith(old)


def test_equal_values_of_an_encrypted_thread_are_stored_once(tmp_path: Path) -> None:
    serde = EncryptedSerializer(FernetCipher())
    large = base64.b64encode(os.urandom(100_000)).decode()
    with HoldallSaver(str(tmp_path / "secret.db"), serde=serde) as saver:
        graph = chat(saver)
        graph.invoke({"messages": [HumanMessage("first", id="first"), HumanMessage(large, id="large")]}, thread("t"))
        before = size_of_log(saver, "t")
        saver.known_logs.clear()
        graph.update_state(thread("t"), {"messages": [HumanMessage("edited", id="first")]})  # the rest is written again
        assert size_of_log(saver, "t") - before < 10_000
        assert graph.get_state(thread("t")).values["messages"][1].content == large
