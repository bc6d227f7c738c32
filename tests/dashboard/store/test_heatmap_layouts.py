"""A heatmap over layouts of which one lacks rows of the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_engines import OpenStore

from probe.wire import Frame, LayerInfo, Layout, ParameterInfo, StreamKey, encode
from probe.wire.columns import pack_column


def layout(number: int, *names: str) -> Layout:
    parameters = [
        ParameterInfo(name=name, shape=[1], dtype="float32", layer=at) for at, name in enumerate(names)
    ]
    layers = [LayerInfo(name=name, type="Linear") for name in names]
    return Layout(layout=number, model="net", parameters=parameters, layers=layers)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("columns", [1, 3, 100])
def test_heatmap_rows_that_an_older_layout_lacks_are_not_measured_there(
    open_store: OpenStore, tmp_path: Path, is_committed: bool, columns: int
) -> None:
    store = open_store(tmp_path)
    key = StreamKey(run="run", writer="0-1", stream="events")
    store.append(key, 0, [encode(layout(0, "a")), encode(layout(1, "a", "b"))])
    frames = [
        Frame(step=step, time=1.0, layout=int(step > 3), columns=[pack_column("grad_norm", np.array(values))])
        for step in range(8)
        for values in [[1.0] if step <= 3 else [2.0, 3.0]]
    ]
    store.append(StreamKey(run="run", writer="0-1", stream="metrics"), 0, [encode(frame) for frame in frames])
    if is_committed:
        store.commit()
    found = store.heatmap("run", 0, max_columns=columns)
    assert found is not None
    assert list(found.rows) == ["a", "b"]
    if columns == 100:
        assert np.isnan(found.values[1, :4]).all()
        assert found.values[1, 4:8].tolist() == [3.0] * 4
    assert np.nanmax(found.values[0]) == 2.0
    store.close()
