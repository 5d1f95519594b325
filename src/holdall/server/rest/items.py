"""Items: one at a time, with the version as ETag, and in atomic batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from starlette.responses import Response

from ... import ABSENT, ANY, DEFAULT, KEEP, ops
from ...core import face_api
from ...errors import InvalidInput, NotFound
from ..exchange import CONDITIONS, FLAG, TEXT, Call, Handler, answer, no_content, takes
from .documents import (
    Deleted,
    etag,
    expectation,
    item_address,
    lease_argument,
    lifetime,
    refuse_past,
    search_fields,
)

_START = "/v1/items/"


@takes("if-none-match", refresh=FLAG, at=TEXT)
async def get_item(call: Call) -> Response:
    """Read an entry."""
    namespace, key = item_address(call, _START)
    refresh = call.flag("refresh") if call.text("refresh") is not None else None
    if refresh:
        call.access.require("write")
        refuse_past(call, "no TTL can be restarted")
    entry = await call.store.aget(namespace, key, refresh=refresh)
    if entry is None:
        raise NotFound(f"there is no {key!r} in {namespace!r}")
    tag = etag(entry.version)
    if call.has_tag(tag["ETag"]):
        return Response(status_code=304, headers=tag)
    return answer(entry, headers=tag)


class VectorCount(msgspec.Struct):
    """How many vectors an entry has."""

    vectors: int


async def count_vectors(call: Call) -> Response:
    """Count the vectors of an entry or a file, by which a search by meaning finds it."""
    namespace, key = item_address(call, "/v1/vectors/")
    return answer(VectorCount(await face_api.arun(call.store, face_api.count_vectors(namespace, key))))


@takes(*CONDITIONS, ttl=TEXT, expires_at=TEXT, search_fields={"type": "array", "items": TEXT})
async def put_item(call: Call) -> Response:
    """Write an entry: the body is its value."""
    namespace, key = item_address(call, _START)
    value = await call.json(dict[str, Any])
    entry = await call.store.aput(
        namespace,
        key,
        value,
        expect=expectation(call),
        search_fields=search_fields(call),
        lease=lease_argument(call),
        **lifetime(call),
    )
    return answer(entry, headers=etag(entry.version))


@takes("holdall-lease", create=FLAG)
async def patch_item(call: Call) -> Response:
    """Change fields of an entry: the body is a JSON merge patch (RFC 7396). Concurrent patches lose nothing."""
    namespace, key = item_address(call, _START)
    patch = await call.json(dict[str, Any])
    default: dict[str, Any] | None = {} if call.flag("create") else None
    entry = await call.store.aupdate(
        namespace, key, lambda value: _merge(value, patch), default=default, lease=lease_argument(call)
    )
    return answer(entry, headers=etag(entry.version))


@takes(*CONDITIONS)
async def delete_item(call: Call) -> Response:
    """Delete an entry."""
    namespace, key = item_address(call, _START)
    if not await call.store.adelete(namespace, key, expect=expectation(call), lease=lease_argument(call)):
        raise NotFound(f"there is no {key!r} in {namespace!r}")
    return no_content()


@takes("holdall-lease")
async def delete_tree(call: Call) -> Response:
    """Delete every entry in a namespace and below it."""
    namespace = tuple(call.segments("/v1/trees/"))
    count = await call.store.adelete_tree(namespace, lease=lease_argument(call))
    return answer(Deleted(count))


def _merge(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), change)
    return merged


# Batches -------------------------------------------------------------------------------------------------------------

_Expect = int | Literal["absent"] | None
_Ttl = float | Literal["keep", "none"] | None


class _Op(msgspec.Struct, tag_field="op", tag=str.lower, forbid_unknown_fields=True):
    namespace: list[str]
    key: Annotated[str, msgspec.Meta(min_length=1)]


class Get(_Op):
    """Read an entry."""

    def to_op(self) -> ops.PointOp:
        return ops.Get(tuple(self.namespace), self.key)


class Put(_Op):
    """Write an entry."""

    value: dict[str, Any]
    expect: _Expect = None
    ttl: _Ttl = None
    search_fields: list[str] | Literal[False] | None = None

    def to_op(self) -> ops.PointOp:
        names: dict[Any, Any] = {None: DEFAULT, "keep": KEEP, "none": None}
        ttl = names.get(self.ttl, self.ttl)
        return ops.Put(tuple(self.namespace), self.key, self.value, ttl, _expect(self.expect), self.search_fields)


class Delete(_Op):
    """Delete an entry."""

    expect: _Expect = None

    def to_op(self) -> ops.PointOp:
        return ops.Delete(tuple(self.namespace), self.key, _expect(self.expect))


class Check(_Op):
    """Check the version of an entry: if it has another, nothing of the batch is done."""

    expect: int | Literal["absent"]

    def to_op(self) -> ops.PointOp:
        return ops.Check(tuple(self.namespace), self.key, _expect(self.expect))


class Refresh(_Op):
    """Restart the TTL of an entry."""

    def to_op(self) -> ops.PointOp:
        return ops.Refresh(tuple(self.namespace), self.key)


class Batch(msgspec.Struct):
    """Ops that are done together, or not at all."""

    ops: list[Get | Put | Delete | Check | Refresh]


class Results(msgspec.Struct):
    """The result of each op: an entry or a file, null, or whether there was something to delete or to refresh."""

    results: list[Any]


@takes("holdall-lease", at=TEXT)
async def run_batch(call: Call) -> Response:
    """Run ops in one transaction."""
    batch = await call.json(Batch)
    if len(batch.ops) > call.service.limits.batch:
        raise InvalidInput(f"a batch has at most {call.service.limits.batch} ops, not {len(batch.ops)}")
    operations = [op.to_op() for op in batch.ops]
    if not all(type(op) in (ops.Get, ops.Check) for op in operations):
        call.access.require("write")
        refuse_past(call, "a batch can only get and check")
    results = await call.store.aexecute(operations, lease=lease_argument(call))
    return answer(Results(results))


def _expect(given: Any) -> Any:
    return ANY if given is None else ABSENT if given == "absent" else given


ROUTES: dict[str, dict[str, tuple[Handler, str | None]]] = {
    "/v1/items/{address:path}": {
        "GET": (get_item, "read"),
        "PUT": (put_item, "write"),
        "PATCH": (patch_item, "write"),
        "DELETE": (delete_item, "write"),
    },
    "/v1/vectors/{address:path}": {"GET": (count_vectors, "read")},
    "/v1/trees/{namespace:path}": {"DELETE": (delete_tree, "write")},
    "/v1/batch": {"POST": (run_batch, "read")},
}
