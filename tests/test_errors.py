"""The tree of errors: which builtin errors they also are."""

from __future__ import annotations

import pickle

import pytest

import holdall
from holdall.errors import FileNotFound, HoldallError, NotFound, Timeout, Unavailable


def test_a_missing_entry_is_a_lookup_error_and_not_a_missing_file() -> None:
    with holdall.open("memory:") as store, pytest.raises(LookupError, match="pass default=") as error:
        store.update(("a",), "k", dict)
    assert type(error.value) is NotFound
    assert not isinstance(error.value, OSError)


@pytest.mark.parametrize(
    "call",
    [
        lambda files: files.read("/missing"),
        lambda files: files.read_text("/missing"),
        lambda files: files.read_range("/missing", 0, 1),
        lambda files: files.edit("/missing", "a", "b"),
        lambda files: files.stat("/missing"),
        lambda files: files.open("/missing"),
        lambda files: files.move("/missing", "/other"),
        lambda files: files.copy("/missing", "/other"),
    ],
)
def test_a_missing_file_is_a_file_not_found_error(call) -> None:
    with (
        holdall.open("memory:") as store,
        pytest.raises(FileNotFoundError, match=r"there is no.*'/missing'") as error,
    ):
        call(store.files())
    assert type(error.value) is FileNotFound
    assert isinstance(error.value, LookupError)
    assert isinstance(error.value, NotFound)
    assert str(error.value) == error.value.args[0], "not as OSError shows an errno"


def test_a_timeout_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError) as error:
        raise Timeout("busy for 5 s")
    assert isinstance(error.value, Unavailable)
    assert str(error.value) == "busy for 5 s"


@pytest.mark.parametrize("error", [NotFound("a"), FileNotFound("b"), Timeout("c")], ids=repr)
def test_errors_can_be_pickled(error: HoldallError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
