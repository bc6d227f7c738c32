"""A run whose every text is hostile: markup, addresses of scripts, what turns or hides text, long names."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from page_runs import INCARNATION, event, histograms, key

from dashboard.store.protocol import Store
from probe.wire import (
    Document,
    Event,
    EventData,
    Frame,
    LayerInfo,
    Layout,
    ModuleInfo,
    Origin,
    ParameterInfo,
    RunStart,
    StackFrame,
    Stacks,
    compared_modes,
    encode,
)
from probe.wire import start_facts as starts
from probe.wire.columns import pack_column
from probe.wire.compared_modes import OptimizationBody, OptimizationRow
from probe.wire.documents import make_document
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, MemorySnapshot
from probe.wire.module_frames import pack_module_columns
from probe.wire.region_times import REGION_KIND, RegionBody

CORPUS: Final = (
    "<img src=//evil.example/x onerror='window.hurt=1'>",
    "<script>window.hurt=1</script>",
    "<svg/onload=window.hurt=1>",
    "<a href='javascript:window.hurt=1'>here</a>",
    "</title></pre><b>bold</b>",
    "javascript:window.hurt=1",
    "rtl\u202egnp.exe",
    "\u2066isolate\u2069\u200fmark",
    "zero\u200bwidth\ufeff\u00ad",
    "line\nfeed\ttab\rreturn\u2028separator",
    "nul\x00escape\x1b[31m",
    "%{y}%{x}%{customdata}<extra>e</extra>",
    "__proto__",
    "constructor",
    "{label}{{7*7}}${7*7}",
    "&lt;b&gt;&#60;&amp;",
    "x" * 4000,
)
RUN: Final = "__proto__"
STEPS: Final = 60
HIDDEN: Final = "\u202e\u2066\u2069\u200f\u200b\ufeff\u00ad\t\r\u2028\x1b"
"""Of the corpus, without the line feed, which stands between lines of source."""
ALL: Final = " ".join(CORPUS[:-1])


def fill_hostile(store: Store) -> list[Event]:
    """Put the run into the store; return its events."""
    description, events = _layout(), _events()
    start = RunStart(
        run=RUN,
        rank=0,
        incarnation=INCARNATION,
        world_size=1,
        name=ALL,
        time=1.7e9,
        host=ALL,
        argv=list(CORPUS),
    )
    records = [start, description, *events, *_documents()]
    store.append(key("events", run=RUN), 0, [encode(record) for record in records])
    store.append(key("metrics", run=RUN), 0, [encode(_frame(step, description)) for step in range(STEPS)])
    store.commit()
    return events


def _layout() -> Layout:
    layers = [LayerInfo(name=name, type=name) for name in CORPUS]
    parameters = [
        ParameterInfo(name=f"{name}.weight"[:4096], shape=[8, 8], dtype="float32", layer=index)
        for index, name in enumerate(CORPUS)
    ]
    modules = [ModuleInfo(name=name, type=name) for name in ("", *CORPUS)]
    return Layout(layout=0, model=ALL, parameters=parameters, layers=layers, modules=modules)


def _frame(step: int, description: Layout) -> Frame:
    count, modules = len(description.parameters), len(description.modules)
    draw = np.random.default_rng(step)
    norms = 10 ** draw.uniform(-3, 0, count)
    logged = {f"log/{name}"[:200]: float(draw.standard_normal()) for name in CORPUS}
    return Frame(
        step=step,
        time=1.7e9 + step * 0.1,
        scalars={"loss": 2.0 - step / 100, "grad_norm": 1.0, "step_time_s": 0.1, "process_rss_bytes": 1e9}
        | logged,
        columns=[pack_column("grad_norm", norms)],
        parameter_columns=[],
        module_columns=pack_module_columns({"activation_rms": np.arange(1.0, modules + 1)}, {}),
        histograms=histograms(step, count, modules) if step % 20 == 0 else [],
    )


def _events() -> list[Event]:
    found = []
    for number, text in enumerate(CORPUS):
        frame = StackFrame(file=f"/{text}.py", line=2, function=text, code=f"a\n{ALL}\n", code_first_line=1)
        severity = ("critical", "warning", "info")[number % 3]
        plain = event(step=number + 1, run=RUN, kind=text, severity=severity, subject=text, message="")
        found.append(
            msgspec.structs.replace(
                plain,
                message=f"{text} at `{text}`\n{ALL}"[:4096],
                origin=Origin(phase="forward", op=text, module=text),
                stacks=Stacks(forward=[frame], training_loop=[frame]),
                advice=[ALL],
                propagated_to=list(CORPUS),
                data=_data(),
                model=text[:64],
            )
        )
    return found


def _data() -> EventData:
    return {text: text for text in CORPUS}


def _documents() -> list[Document]:
    texts = {text: text for text in CORPUS}
    tree = starts.WorkTree(diff=ALL, sha256=ALL, size_bytes=9, files=list(CORPUS), is_whole=True)
    facts = starts.StartFacts(options=texts, config=texts, config_source=ALL, seeds=texts, work_tree=tree)
    region = RegionBody(
        path=ALL,
        count=1,
        errors=0,
        total_s=1,
        mean_s=1,
        running_mean_s=1,
        max_s=1,
        last_s=1,
        newest_anomalies=[ALL[:512]],
    )
    snapshot = MemorySnapshot(label=ALL[:512], cause="call", time=1.7e9, rss_bytes=10)
    compared = OptimizationBody(
        model=ALL[:512],
        device=ALL[:64],
        pairs=1,
        recommended=ALL[:64],
        why=ALL[:4096],
        rows=[OptimizationRow(mode=ALL[:64], note=ALL[:4096], error=error) for error in (None, ALL[:4096])],
    )
    bodies = (
        (facts, starts.KIND),
        (region, REGION_KIND),
        (snapshot, MEMORY_SNAPSHOT),
        (compared, compared_modes.KIND),
    )
    return [make_document(body, kind=kind, key=ALL[:512], step=1, time=1.7e9) for body, kind in bodies]
