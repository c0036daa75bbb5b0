"""TensorBoard: figures in `<result directory>/tensorboard`; `tensorboard --logdir <output-dir>`.

TensorBoard's own package writes the files; TensorFlow and torch are not needed.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strategies.protocol.settings import Settings


class TensorBoard:
    """Event files beside the results: one for each process that worked on the run."""

    def check(self) -> str:
        """The destination of the figures; it is writable where results are."""
        return "TensorBoard, with --logdir and the folder of the results"

    def begin(self, run: str, path: Path, settings: Settings) -> None:
        """Open a new file. Rounds in earlier files are void: all rounds are sent again."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._run, self._settings = run, settings.run_config
        self._writer = EventFileWriter(str(path / "tensorboard"))
        self._described = False
        self._add(step=1, session_log=SessionLog(status=SessionLog.START))

    def round(self, number: int, hospitals: Sequence[str], figures: Mapping[str, float]) -> None:
        """Write a round's figures; with the first round, the settings as hyper-parameters."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        if not self._described:  # from the first round on, the hospitals are known
            described = {**self._settings, "hospitals": ", ".join(hospitals)}
            self._add(summary=hparams_pb(described, trial_id=self._run))
            self._described = True
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(step=number, summary=Summary(value=values))
        self._writer.flush()

    def end(self, tags: Mapping[str, str], files: Sequence[Path], page: str) -> None:
        """Close the event file; TensorBoard shows neither files nor the report."""
        self._writer.close()

    def _add(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), **content))
