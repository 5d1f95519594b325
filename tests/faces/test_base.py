"""What faces share: reading everything, whatever its number."""

from __future__ import annotations

import holdall
from holdall import ops
from holdall.core import face_api
from holdall.faces.base import read_all, read_namespaces


def test_all_entries_and_namespaces_are_read_in_pages() -> None:
    with holdall.open("memory:") as store:
        expected = {("users", str(number)) for number in range(2001)}
        store.execute([ops.Put(namespace, "k", {}) for namespace in sorted(expected)])
        store.put(("other",), "k", {})
        found = face_api.run(store, read_namespaces(store, prefix=("users",)))
        assert len(found) == 2001 and set(found) == expected
        hits = face_api.run(store, read_all(store, ("users",)))
        assert len(hits) == 2001 and {hit.namespace for hit in hits} == expected
