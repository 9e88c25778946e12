"""SummaryWriter: scalars, histograms, texts and pictures in TensorBoard's files."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._tensor import Tensor


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value if value.dtype.__name__ != "bfloat16" else value.float()).numpy()
    return np.asarray(value)


class SummaryWriter:
    """Writes events for TensorBoard into a folder, on a thread of its own; a context manager.

    Args:
        log_dir: by default runs/<date>_<host><comment>.
        comment: the end of the default name.
        purge_step: TensorBoard leaves out what an earlier run wrote from this step on.
        max_queue: events that wait before add_ calls do.
        flush_secs: seconds between writes.
        filename_suffix: the end of the file's name.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        now = time.strftime("%b%d_%H-%M-%S")
        self.log_dir = os.fspath(log_dir or os.path.join("runs", f"{now}_{socket.gethostname()}{comment}"))
        self.max_queue, self.flush_secs, self.filename_suffix = max_queue, flush_secs, filename_suffix
        self._files: dict[str, Any] = {}
        if purge_step is not None:
            from tensorboard.compat.proto import event_pb2

            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            event = event_pb2.Event(step=purge_step, session_log=start, wall_time=time.time())
            self._file().add_event(event)
        else:
            self._file()

    def _file(self, folder: str = "") -> Any:
        if folder not in self._files:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            place = os.path.join(self.log_dir, folder) if folder else self.log_dir
            self._files[folder] = EventFileWriter(
                place, self.max_queue, self.flush_secs, self.filename_suffix
            )
        return self._files[folder]

    def _add(self, summary: Any, step: int | None, walltime: float | None, folder: str = "") -> None:
        from tensorboard.compat.proto import event_pb2

        event = event_pb2.Event(summary=summary, wall_time=time.time() if walltime is None else walltime)
        if step is not None:
            event.step = int(step)
        self._file(folder).add_event(event)

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """One number: a Python number, or a tensor or array of one element."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        value = float(_array(scalar_value).reshape(()))
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Several numbers in one picture: each gets a folder of its own, as in PyTorch."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for tag, value in tag_scalar_dict.items():
            number = float(_array(value).reshape(()))
            summary = Summary(value=[Summary.Value(tag=main_tag, simple_value=number)])
            self._add(summary, global_step, walltime, f"{main_tag.replace('/', '_')}_{tag}")

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """The distribution of all elements; `bins` as numpy.histogram's ("tensorflow" is 64 equal ones).

        Raises:
            ValueError: no elements.
        """
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        flat = _array(values).astype(np.float64).ravel()
        if not flat.size:
            raise ValueError("add_histogram: the input has no element")
        counts, limits = np.histogram(flat, 64 if bins == "tensorflow" else bins)
        if max_bins is not None and len(counts) > max_bins:
            counts, limits = np.histogram(flat, max_bins)
        # Each count belongs to the values up to its limit.
        histogram = HistogramProto(
            min=flat.min(),
            max=flat.max(),
            num=flat.size,
            sum=flat.sum(),
            sum_squares=flat @ flat,
            bucket_limit=limits.tolist(),
            bucket=[0.0, *counts.tolist()],
        )
        self._add(Summary(value=[Summary.Value(tag=tag, histo=histogram)]), global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Text, shown as Markdown."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        text = TensorProto(dtype="DT_STRING", string_val=[text_string.encode()], tensor_shape=shape)
        plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag=f"{tag}/text_summary", metadata=plugin, tensor=text)
        self._add(Summary(value=[value]), global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """A picture of 1 or 3 channels: bytes, or floats from 0 to 1. Needs Pillow.

        Raises:
            ValueError: `dataformats` that does not name the dims C, H, W or H, W.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        pixels = _array(img_tensor)
        if sorted(dataformats) not in (["C", "H", "W"], ["H", "W"]) or pixels.ndim != len(dataformats):
            raise ValueError(f"add_image: expected dims {dataformats!r}, got shape {tuple(pixels.shape)}")
        if pixels.dtype.kind == "f":
            pixels = (pixels * 255.0).clip(0, 255)
        pixels = pixels.astype(np.uint8)
        if "C" in dataformats:
            pixels = pixels.transpose([dataformats.index(dim) for dim in "HWC"])
            pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        from PIL import Image

        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "PNG")
        height, width = pixels.shape[:2]
        image = Summary.Image(
            height=height, width=width, colorspace=pixels.ndim, encoded_image_string=data.getvalue()
        )
        self._add(Summary(value=[Summary.Value(tag=tag, image=image)]), global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Several pictures of one size, side by side."""
        pixels = np.moveaxis(_array(img_tensor), dataformats.index("N"), 0)
        rest = dataformats.replace("N", "")
        self.add_image(tag, np.concatenate(pixels, rest.index("W")), global_step, walltime, rest)

    def add_figure(
        self,
        tag: str,
        figure: Any,
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """A figure of matplotlib, which is closed unless `close` is False."""
        import matplotlib.pyplot as plt
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        self.add_image(tag, np.asarray(canvas.buffer_rgba())[:, :, :3], global_step, walltime, "HWC")
        if close:
            plt.close(figure)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Any = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """What a run was started with, and what came of it; in a folder of its own."""
        from tensorboard.plugins.hparams import summary_v2 as hparams

        folder = run_name or str(time.time())
        self._add(hparams.hparams_pb(dict(hparam_dict)), None, None, folder)
        from tensorboard.compat.proto.summary_pb2 import Summary

        for tag, value in metric_dict.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=float(_array(value).reshape(())))])
            self._add(summary, global_step, None, folder)

    def get_logdir(self) -> str:
        """Where the files are."""
        return self.log_dir

    def flush(self) -> None:
        """Write what waits."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Write what waits and close the files; a later add_ call opens new ones."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
