"""What a run has written of its progress."""

from pathlib import Path

from probe.delivery.journal.journal_reader import read_stream
from probe.wire import Document, decode_record
from probe.wire.documents import read_body
from probe.wire.training_progress import TrainingProgress


def progress_of(spool: Path) -> list[TrainingProgress]:
    """Every state of the only run's only rank, in the order of writing."""
    (folder,) = {writer.parent for writer in spool.glob("*/0-*")}
    return progress_of_run(folder)


def progress_of_run(folder: Path) -> list[TrainingProgress]:
    """The same of one run among others."""
    (writer,) = folder.glob("0-*")
    records = [decode_record(payload) for _, payload in read_stream(writer, "events")]
    documents = [item for item in records if isinstance(item, Document) and item.kind == "progress"]
    return [read_body(item, TrainingProgress) for item in documents]
