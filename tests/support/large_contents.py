"""Lets small files count as large ones, whose contents are not in their records."""

from __future__ import annotations

import pytest

import holdall
from holdall import ops


def leave_out_contents(store: holdall.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the engine of a store return records without contents of more than 1,000 bytes."""
    engine = store._engine_handle.engine
    execute = engine.execute

    def shortened(batch: list[ops.PointOp]) -> list[object]:
        results = execute(batch)
        for number, page in enumerate(results):
            if isinstance(page, ops.RecordPage):
                cut = [
                    ops.replace(record, content=None) if (record.size or 0) > 1000 else record
                    for record in page.records
                ]
                results[number] = ops.replace(page, records=cut)
        return results

    monkeypatch.setattr(engine, "execute", shortened)
