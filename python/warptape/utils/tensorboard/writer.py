"""SummaryWriter: scalars, histograms, texts and pictures in TensorBoard's files."""

from __future__ import annotations

import io
import math
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from ...core import Tensor

if TYPE_CHECKING:
    from warptape.nn import Module


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        return (value if value.dtype.__name__ != "bfloat16" else value.float()).numpy()
    return np.asarray(value)


def _picture(pixels: np.ndarray, dims: str) -> Any:
    from PIL import Image

    if pixels.dtype.kind == "f":
        pixels = (pixels * 255.0).clip(0, 255)
    pixels = pixels.astype(np.uint8)
    if "C" in dims:
        pixels = pixels.transpose([dims.index(dim) for dim in "HWC"])
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return Image.fromarray(pixels)


def _sprite(pictures: np.ndarray) -> np.ndarray:
    """[N, C, H, W] as one picture [C, n H, n W], row by row in a square that is filled with zeros."""
    count, channels, height, width = pictures.shape
    n = math.isqrt(max(count - 1, 0)) + 1
    grid = np.zeros((n * n, channels, height, width), pictures.dtype)
    grid[:count] = pictures
    rows = grid.reshape(n, n, channels, height, width).transpose(2, 0, 3, 1, 4)
    return rows.reshape(channels, n * height, n * width)


def _write_table(path: str, rows: Iterable[Iterable[Any]]) -> None:
    with open(path, "w") as file:
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)


def _log_bins() -> Any:
    """TensorFlow's bins: limits grow by a tenth each from 1e-12 to 1e20, on both sides of 0."""
    sizes = np.cumprod([1e-12, *[1.1] * 773])
    sizes = sizes[sizes < 1e20]
    return np.concatenate([-sizes[::-1], [0.0], sizes])


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
        self._projected: Any = None  # the projector's configuration
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

    def _add_number(self, tag: str, value: Any, *where: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        number = float(_array(value).reshape(()))
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=number)]), *where)

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """One number: a Python number, or a tensor or array of one element.

        Args:
            tag: the curve's name; a slash groups curves.
            scalar_value: the number.
            global_step: where on the x axis.
            walltime: seconds since 1970; now if None.
            new_style, double_precision: accepted, without effect.
        """
        self._add_number(tag, scalar_value, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Several numbers in one picture: each gets a folder of its own, as in PyTorch.

        Args:
            main_tag: the picture's name.
            tag_scalar_dict: a number for each curve.
            global_step: where on the x axis.
            walltime: seconds since 1970; now if None.
        """
        for tag, value in tag_scalar_dict.items():
            self._add_number(main_tag, value, global_step, walltime, f"{main_tag.replace('/', '_')}_{tag}")

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: str | Sequence[float] | np.ndarray = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """The distribution of all elements; `bins` as numpy.histogram's ("tensorflow": see `_log_bins`).

        Raises:
            ValueError: no elements.
        """
        from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

        flat = _array(values).astype(np.float64).ravel()
        if not flat.size:
            raise ValueError("add_histogram: the input has no element")
        counts, limits = np.histogram(flat, _log_bins() if bins == "tensorflow" else bins)
        if max_bins is not None and len(counts) > max_bins:
            counts, limits = np.histogram(flat, max_bins)
        # Each count belongs to the values up to its limit. The empty bins at both ends are left out, but for
        # the one whose limit is where the first values begin.
        (filled,) = counts.nonzero()
        if filled.size:
            counts, limits = counts[filled[0] : filled[-1] + 1], limits[filled[0] : filled[-1] + 2]
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
        """Text, shown as Markdown.

        Args:
            tag: the text's name.
            text_string: Markdown.
            global_step: the step it belongs to.
            walltime: seconds since 1970; now if None.
        """
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
        data = io.BytesIO()
        picture = _picture(pixels, dataformats)
        picture.save(data, "PNG")
        image = Summary.Image(
            height=picture.height,
            width=picture.width,
            colorspace=3 if picture.mode == "RGB" else 2,
            encoded_image_string=data.getvalue(),
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
        """Several pictures of one size, side by side.

        Args:
            tag: the pictures' name.
            img_tensor: [N, C, H, W] numbers from 0 to 1, or uint8.
            global_step: the step they belong to.
            walltime: seconds since 1970; now if None.
            dataformats: which dimension is which.
        """
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
        """A figure of matplotlib, which is closed unless `close` is False.

        Args:
            tag: the figure's name.
            figure: of matplotlib.
            global_step: the step it belongs to.
            close: whether matplotlib forgets it.
            walltime: seconds since 1970; now if None.
        """
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
        hparam_domain_discrete: Mapping[str, Sequence[Any]] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """What a run was started with, and what came of it; in a folder of its own.

        Args:
            hparam_dict: options by name.
            metric_dict: results by name.
            hparam_domain_discrete: accepted, without effect.
            run_name: the folder; the time if None.
            global_step: the step the results belong to.
        """
        from tensorboard.plugins.hparams import summary_v2 as hparams

        folder = run_name or str(time.time())
        self._add(hparams.hparams_pb(dict(hparam_dict)), None, None, folder)
        for tag, value in metric_dict.items():
            self._add_number(tag, value, global_step, None, folder)

    def add_graph(
        self, model: Module, input_to_model: Any = None, verbose: bool = False, use_strict_trace: bool = True
    ) -> None:
        """The graph of the model's call with these inputs, by the tape: no op that no gradient flows through.

        Args:
            model: a Module; it is called once, in evaluation mode.
            input_to_model: its argument, or a tuple of them.
            verbose: print the graph, too.
            use_strict_trace: without effect.

        Raises:
            ValueError: no input.
            RuntimeError: no output of the model has a gradient function.
        """
        from tensorboard.compat.proto import event_pb2

        from .graph import graph_of

        if input_to_model is None:
            raise ValueError("add_graph: expected input_to_model, what the model is called with")
        graph = graph_of(model, input_to_model)
        if verbose:
            print(graph)
        event = event_pb2.Event(graph_def=graph.SerializeToString(), wall_time=time.time())
        self._file().add_event(event)

    def add_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        global_step: int | None = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Precision over recall of a binary classifier, at thresholds from 0 to 1 (127 at most).

        Args:
            labels: the truth, 0 or 1, for each element.
            predictions: the probability that it is 1.
            weights: of the elements; 1 where left out.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.pr_curve.plugin_data_pb2 import PrCurvePluginData

        n = min(num_thresholds, 127)
        truth = _array(labels).ravel().astype(bool)
        chance = _array(predictions).ravel().astype(np.float64)
        weight = np.broadcast_to(_array(1.0 if weights is None else weights).ravel(), truth.shape)
        # What reaches a threshold is in its bucket or in a later one.
        bucket = np.floor(chance * (n - 1)).astype(np.int64)
        tp, fp = (np.bincount(bucket[side], weight[side], n)[::-1].cumsum()[::-1] for side in (truth, ~truth))
        fn, tn = tp[0] - tp, fp[0] - fp
        precision, recall = tp / np.maximum(tp + fp, 1e-7), tp / np.maximum(tp + fn, 1e-7)
        rows = np.stack((tp, fp, tn, fn, precision, recall)).astype(np.float32)
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in rows.shape])
        data = TensorProto(dtype="DT_FLOAT", float_val=rows.ravel().tolist(), tensor_shape=shape)
        content = PrCurvePluginData(version=0, num_thresholds=n).SerializeToString()
        plugin = SummaryMetadata.PluginData(plugin_name="pr_curves", content=content)
        value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=data)
        self._add(Summary(value=[value]), global_step, walltime)

    def add_embedding(
        self,
        mat: Any,
        metadata: Sequence[Any] | None = None,
        label_img: Any = None,
        global_step: int | None = None,
        tag: str = "default",
        metadata_header: Sequence[str] | None = None,
    ) -> None:
        """Points for the projector, in files beside the events.

        Args:
            mat: [N, D], a point in each row.
            metadata: N labels; N lists of them, with `metadata_header` as the names of their columns.
            label_img: [N, C, H, W], a picture for each point. Needs Pillow.

        Raises:
            ValueError: `mat` is no matrix, or the labels or pictures are not as many as its rows.
        """
        from google.protobuf import text_format
        from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

        points = _array(mat)
        if points.ndim != 2:
            raise ValueError(f"add_embedding: mat should be 2D, got shape {points.shape}")
        for what, values in (("labels", metadata), ("images", label_img)):
            if values is not None and len(values) != len(points):
                raise ValueError(f"add_embedding: {len(values)} {what} for {len(points)} data points")
        step = str(global_step or 0).zfill(5)
        place = f"{step}/{quote(tag, safe='')}"
        folder = os.path.join(self.log_dir, place)
        os.makedirs(folder, exist_ok=True)
        if self._projected is None:
            self._projected = ProjectorConfig()
        embedding = self._projected.embeddings.add(
            tensor_name=f"{tag}:{step}", tensor_path=f"{place}/tensors.tsv"
        )
        if metadata is not None:
            header = [metadata_header] if metadata_header else []
            rows = [*header, *(row if isinstance(row, list | tuple) else [row] for row in metadata)]
            _write_table(os.path.join(folder, "metadata.tsv"), rows)
            embedding.metadata_path = f"{place}/metadata.tsv"
        if label_img is not None:
            pictures = _array(label_img)
            _picture(_sprite(pictures), "CHW").save(os.path.join(folder, "sprite.png"))
            embedding.sprite.image_path = f"{place}/sprite.png"
            embedding.sprite.single_image_dim.extend([pictures.shape[3], pictures.shape[2]])
        _write_table(os.path.join(folder, "tensors.tsv"), points.tolist())
        with open(os.path.join(self.log_dir, "projector_config.pbtxt"), "w") as file:
            file.write(text_format.MessageToString(self._projected))

    def get_logdir(self) -> str:
        """Where the files are."""
        return self.log_dir

    def flush(self) -> None:
        """Write what waits.

        A file is written at intervals and when it is closed; this does it now.
        """
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Write what waits and close the files.

        A later add_ call opens new ones in the same folder.
        """
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
