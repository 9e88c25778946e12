"""Data pipes against PyTorch 2.13's: samples, orders, errors, and what a DataLoader sets in them."""

from __future__ import annotations

import pickle
import warnings

import pytest
import warptape as torch
from warptape import distributed as dist
from warptape.utils.data import DataLoader, IterDataPipe, MapDataPipe, functional_datapipe
from warptape.utils.data.datapipes.iter import FileLister, FileOpener, IterableWrapper, Sampler
from warptape.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from warptape.utils.data.datapipes.map import SequenceWrapper
from warptape.utils.data.datapipes.utils.common import StreamWrapper
from warptape.utils.data.graph import traverse_dps
from warptape.utils.data.graph_settings import apply_sharding, get_all_graph_pipes

# Printed by PyTorch 2.13.
SHUFFLED = [6, 7, 18, 15, 12, 10, 14, 11, 16, 8, 0, 4, 5, 2, 19, 3, 1, 9, 13, 17]
SHUFFLED_BY_5 = [3, 1, 0, 5, 2, 4, 7, 6, 8, 9, 14, 11, 12, 13, 10, 15, 19, 16, 17, 18]
SEEDED = [3, 5, 1, 8, 6, 7, 2, 0, 4, 9]
MAP_SEEDED = [2, 3, 5, 0, 4, 1]
LOADED_HERE = [
    [[2, 5], [9, 10], [7, 8], [6, 11], [3, 12], [4, 1]],
    [[9, 2], [11, 12], [8, 7], [5, 3], [1, 10], [6, 4]],
]
LOADED_BY_WORKERS = [
    [[2, 9], [5, 10], [7, 6], [8, 11], [3, 4], [12, 1]],
    [[8, 11], [6, 9], [10, 1], [7, 12], [2, 3], [4, 5]],
]


def odd(x):
    return x % 2


def is_even(x):
    return x % 2 == 0


def inc(x):
    return x + 1


def add(a, b):
    return a + b


itself = lambda x: x


def first_letter(text):
    return text[0]


def numbers(n):
    return IterableWrapper(range(n))


def test_map_and_its_columns():
    assert list(numbers(3).map(inc)) == [1, 2, 3] and len(numbers(3).map(inc)) == 3
    rows = IterableWrapper([(1, 2, 3), (4, 5, 6)])
    assert list(rows.map(inc, input_col=0)) == [(2, 2, 3), (5, 5, 6)]
    assert list(rows.map(add, input_col=[0, 1])) == [(3, 3), (9, 6)]
    assert list(rows.map(add, input_col=[1, 0], output_col=-1)) == [(1, 2, 3, 3), (4, 5, 6, 9)]
    assert list(rows.map(add, input_col=[0, 1], output_col=[2])) == [(1, 2, 3), (4, 5, 9)]
    named = IterableWrapper([{"a": 1, "b": 2}])
    assert list(named.map(add, input_col=["a", "b"], output_col="c")) == [{"a": 1, "b": 2, "c": 3}]
    assert list(named.map(add, input_col=["a", "b"])) == [{"a": 3}]
    assert named.iterable == [{"a": 1, "b": 2}]  # a pass reads a copy


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda p: p.map(inc, output_col=1), "`output_col` must be None"),
        (lambda p: p.map(add, input_col=[0, 1], output_col=[1, 2]), "single-element"),
        (lambda p: p.map(inc, input_col=[0, 1]), "inc takes 1 positional parameters, but 2 are required"),
        (lambda p: p.filter(add), "add takes 2 positional parameters, but 1 are required"),
    ],
)
def test_functions_that_do_not_fit_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make(numbers(3))
    with pytest.raises(TypeError, match="callable function is expected"):
        numbers(3).map(3)
    with pytest.warns(UserWarning, match="Local function is not supported by pickle"):
        numbers(3).map(lambda x: x)
    with pytest.warns(UserWarning, match="Lambda function is not supported by pickle"):
        numbers(3).map(itself)


def test_filter_and_collate():
    assert list(numbers(7).filter(is_even)) == [0, 2, 4, 6]
    with pytest.raises(ValueError, match=r"Boolean output is required .* got int"):
        list(numbers(7).filter(inc))
    with pytest.raises(TypeError, match="valid length"):
        len(numbers(7).filter(is_even).batch(2))
    assert [b.tolist() for b in numbers(4).batch(2).collate()] == [[0, 1], [2, 3]]
    assert list(numbers(4).batch(2).collate(collate_fn=sum)) == [1, 5]


def test_batches_and_back():
    batches = list(numbers(7).batch(3))
    assert batches == [[0, 1, 2], [3, 4, 5], [6]] and batches[0].as_str("> ") == "> [0, 1, 2]"
    assert list(numbers(7).batch(3, drop_last=True)) == batches[:2]
    assert len(numbers(7).batch(3)) == 3 and len(numbers(7).batch(3, True)) == 2
    deep = IterableWrapper([[[0, 1], [2]], [[3]]])
    assert list(deep.unbatch()) == [[0, 1], [2], [3]]
    assert list(deep.unbatch(2)) == list(deep.unbatch(-1)) == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="unbatch_level 4 exceeds the depth"):
        list(deep.unbatch(4))
    with pytest.raises(ValueError, match="must be -1 or >= 0"):
        list(deep.unbatch(-2))
    with pytest.raises(AssertionError, match="larger than 0"):
        numbers(7).batch(0)


def test_groups():
    assert list(numbers(9).groupby(odd)) == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
    pairs = numbers(5).groupby(odd, group_size=2, keep_key=True)
    assert list(pairs) == [(0, [0, 2]), (1, [1, 3]), (0, [4])]
    texts = IterableWrapper(["a1", "b1", "a2", "b2", "a3", "c1"])
    full = texts.groupby(first_letter, buffer_size=3, group_size=3, guaranteed_group_size=2)
    assert list(full) == [["a1", "a2"], ["b1", "b2"], ["a3"], ["c1"]]
    with pytest.raises(RuntimeError, match="guaranteed_group_size=2; raise buffer_size"):
        list(IterableWrapper("abcdef").groupby(first_letter, buffer_size=3, group_size=2))
    dropping = IterableWrapper("abcdef").groupby(
        first_letter, buffer_size=3, group_size=2, drop_remaining=True
    )
    assert list(dropping) == [["e"], ["f"]]
    with pytest.raises(AssertionError, match="<= buffer_size"):
        texts.groupby(first_letter, buffer_size=3, group_size=4)


def test_several_in_one():
    assert list(numbers(3).zip(numbers(5))) == [(0, 0), (1, 1), (2, 2)]
    assert list(numbers(2).concat(numbers(3))) == [0, 1, 0, 1, 2]
    assert list(numbers(2).mux(IterableWrapper([7, 8, 9]))) == [0, 7, 1, 8]
    assert [len(p) for p in (numbers(3).zip(numbers(5)), numbers(2).concat(numbers(3)))] == [3, 5]
    assert len(numbers(2).mux(numbers(3))) == 4
    for method in ("zip", "concat"):
        with pytest.raises(TypeError, match="IterDataPipe"):
            getattr(numbers(2), method)([1])


def test_fork_reads_its_source_once():
    read = []

    def note(x):
        read.append(x)
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a, b, c = numbers(5).map(note).fork(3)
    assert list(a) == [0, 1, 2, 3, 4] and len(b) == 5
    part = iter(b)
    assert [next(part), next(part)] == [0, 1]
    assert list(c) == [0, 1, 2, 3, 4] and list(part) == [2, 3, 4] and read == [0, 1, 2, 3, 4]
    first = iter(a)
    next(first)
    with pytest.warns(UserWarning, match="not exhausted"):
        list(a)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
    assert list(pickle.loads(pickle.dumps(numbers(4).fork(2)))[1]) == [0, 1, 2, 3]


def test_fork_limits_and_copies():
    with pytest.raises(BufferError, match="buffer size 3 is insufficient"):
        list(numbers(9).fork(2, buffer_size=3)[0])
    with pytest.warns(UserWarning, match="Unlimited buffer"):
        assert list(numbers(9).fork(2, buffer_size=-1)[0]) == [*range(9)]
    source = numbers(2)
    assert source.fork(1) is source
    for bad in (0, -1):
        with pytest.raises(ValueError, match="`num_instances` larger than 0"):
            source.fork(bad)
    with pytest.raises(ValueError, match="Unknown copy method"):
        source.fork(2, copy="x")
    same = [next(iter(p)) for p in IterableWrapper([[1]], deepcopy=False).fork(2)]
    deep = [next(iter(p)) for p in IterableWrapper([[1]], deepcopy=False).fork(2, copy="deep")]
    assert same[0] is same[1] and deep[0] is not deep[1] and deep == [[1], [1]]


def test_demux():
    even, uneven = numbers(7).demux(2, odd)
    assert list(even) == [0, 2, 4, 6] and list(uneven) == [1, 3, 5] and list(even) == [0, 2, 4, 6]
    with pytest.raises(BufferError, match=r"Demultiplexer.* buffer size 2"):
        list(numbers(9).demux(2, odd, buffer_size=2)[0])
    with pytest.raises(ValueError, match=r"between 0 and 1\. 2 is returned"):
        list(numbers(9).demux(2, inc)[0])

    with pytest.warns(UserWarning, match="Local function"):
        (some,) = numbers(5).demux(1, lambda x: None if x < 3 else 0, drop_none=True)
    assert list(some) == [3, 4]
    with pytest.raises(TypeError, match="valid length"):
        len(even)


def test_one_iterator_at_a_time():
    pipe = numbers(5).map(inc)
    old, new = iter(pipe), iter(pipe)
    assert next(old) == 1 and next(new) == 1  # a generator begins with its first sample
    with pytest.raises(RuntimeError, match=r"invalidated .*MapperIterDataPipe\(datapipe=.*fn=inc"):
        next(old)
    assert list(new) == [2, 3, 4, 5] and list(pipe) == [1, 2, 3, 4, 5]

    class Counting(IterDataPipe):
        resets = 0

        def __init__(self):
            self.at = 0

        def reset(self):
            self.at, self.resets = 0, self.resets + 1

        def __next__(self):
            if self.at == 2:
                raise StopIteration
            self.at += 1
            return self.at

    count = Counting()
    assert list(count) == [1, 2] == list(count) and count.resets == 2


def test_an_error_names_the_pipe():
    def fail(x):
        raise KeyError("what")

    with pytest.warns(UserWarning, match="Local"):
        pipe = numbers(3).map(fail).batch(2)
    with pytest.raises(KeyError) as error:
        list(pipe)
    assert error.value.args[0].startswith("what\nThis exception is thrown by __iter__ of MapperIterDataPipe(")


def test_shuffles_are_pytorchs():
    torch.manual_seed(3)
    first = list(numbers(20).shuffle())
    assert first == SHUFFLED and list(numbers(20).shuffle(buffer_size=5)) == SHUFFLED_BY_5
    seeded = numbers(10).shuffle().set_seed(4)
    assert list(seeded) == SEEDED and sorted(seeded) == [*range(10)]
    assert list(numbers(4).shuffle().set_shuffle(False)) == [0, 1, 2, 3]
    assert sorted(numbers(9).batch(2).shuffle(unbatch_level=1)) == [*range(9)]
    assert list(Sampler(numbers(4))) == [0, 1, 2, 3]
    assert list(SequenceWrapper(range(6)).shuffle().set_seed(1)) == MAP_SEEDED
    with pytest.raises(AssertionError, match="buffer_size"):
        numbers(3).shuffle(buffer_size=0)


def test_shards():
    pipe = numbers(10).sharding_filter()
    assert list(pipe) == [*range(10)]
    pipe.apply_sharding(3, 1)
    assert list(pipe) == [1, 4, 7] and len(pipe) == 3
    with pytest.raises(ValueError, match=r"instance_id\(3\) should be smaller"):
        pipe.apply_sharding(3, 3)
    both = numbers(20).sharding_filter()
    both.apply_sharding(2, 1, SHARDING_PRIORITIES.DISTRIBUTED)
    both.apply_sharding(3, 2, SHARDING_PRIORITIES.MULTIPROCESSING)
    assert list(both) == [5, 11, 17] and len(both) == 3
    with pytest.raises(RuntimeError, match="cannot mix"):
        both.apply_sharding(2, 0)
    with pytest.raises(RuntimeError, match="Sharding twice on a single pipeline"):
        apply_sharding(numbers(3).sharding_filter().map(inc).sharding_filter(), 2, 0)


def test_graphs():
    a, b = numbers(3).fork(2)
    pipe = a.zip(b.map(inc)).shuffle()

    def shown(graph):
        return {repr(p): shown(below) for p, below in graph.values()}

    source = {"_Fork": {"IterableWrapperIterDataPipe": {}}}
    below = {"_ChildDataPipe": source, "MapperIterDataPipe": {"_ChildDataPipe": source}}
    graph = traverse_dps(pipe)
    assert shown(graph) == {"ShufflerIterDataPipe": {"ZipperIterDataPipe": below}}
    assert len(get_all_graph_pipes(graph)) == 7
    with pytest.raises(RuntimeError, match="Expected `IterDataPipe`"):
        traverse_dps([1])


def test_map_style():
    pipe = SequenceWrapper(range(5)).map(inc)
    assert isinstance(pipe, MapDataPipe) and [pipe[i] for i in range(5)] == [1, 2, 3, 4, 5]
    batches = pipe.batch(2)
    assert len(batches) == 3 and batches[2] == [5] and len(pipe.batch(2, drop_last=True)) == 2
    with pytest.raises(IndexError, match="Index 3 is out of bound"):
        batches[3]
    joined, zipped = pipe.concat(SequenceWrapper("ab")), pipe.zip(SequenceWrapper("ab"))
    assert len(joined) == 7 and joined[6] == "b" and len(zipped) == 2 and zipped[1] == (2, "b")
    with pytest.raises(IndexError, match="Index 7 is out of range"):
        joined[7]
    with pytest.raises(IndexError, match="one of the input MapDataPipes"):
        zipped[2]
    assert SequenceWrapper({"a": 1})["a"] == 1
    assert [b.tolist() for b in DataLoader(pipe, batch_size=2)] == [[1, 2], [3, 4], [5]]


def test_files(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a.txt", "c.bin", "in/d.txt"):
        (tmp_path / name).write_text(name)
    names = [path.removeprefix(f"{tmp_path}/") for path in FileLister(str(tmp_path), "*.txt", recursive=True)]
    assert names == ["a.txt", "b.txt", "in/d.txt"]
    files = FileLister(str(tmp_path), ["*.txt", "*.bin"])
    assert [text for _, text in files.open_files(mode="b").read_from_stream()] == [
        b"a.txt",
        b"b.txt",
        b"c.bin",
    ]
    assert [t for _, t in FileOpener([str(tmp_path / "a.txt")]).read_from_stream(chunk=3)] == ["a.t", "xt"]
    (pair,) = FileOpener([str(tmp_path / "a.txt")])
    inner = pair[1].file_obj
    assert isinstance(pair[1], StreamWrapper) and pair[1].readline() == "a.txt"
    del pair
    assert inner.closed
    with pytest.raises(ValueError, match="Invalid mode w"):
        FileOpener([], mode="w")
    with pytest.raises(TypeError, match="Expected string"):
        list(FileOpener([3]))


def test_an_archive_is_closed_with_its_last_member():
    class Open:
        closed = False

        def close(self):
            self.closed = True

    archive = StreamWrapper(Open())
    a, b = StreamWrapper(Open(), archive), StreamWrapper(Open(), archive)
    archive.autoclose()
    StreamWrapper.close_streams({"x": [a]})
    assert a.closed and not archive.closed
    b.close()
    assert archive.file_obj.closed


def test_a_class_becomes_a_method():
    @functional_datapipe("times_for_this_test")
    class Times(IterDataPipe):
        """Multiplies."""

        def __init__(self, source, factor):
            self.source, self.factor = source, factor

        def __iter__(self):
            return (x * self.factor for x in self.source)

    pipe = numbers(3).times_for_this_test(factor=4)
    assert list(pipe) == [0, 4, 8] and "times_for_this_test" in dir(pipe)
    assert numbers(3).times_for_this_test.__doc__ == "Multiplies."
    with pytest.raises(ValueError, match="already taken"):
        functional_datapipe("times_for_this_test")(Times)
    with pytest.raises(AttributeError, match="'Times' object has no attribute 'nothing'"):
        pipe.nothing()


def loaded(workers, persistent=False, **how):
    torch.manual_seed(7)
    pipe = numbers(12).shuffle().sharding_filter().map(inc)
    loader = DataLoader(pipe, 2, shuffle=True, num_workers=workers, persistent_workers=persistent, **how)
    passes = [[batch.tolist() for batch in loader] for _ in range(2)]
    return passes, round(torch.rand(1).item(), 6)


def test_loaders_shuffle_as_pytorchs():
    assert loaded(0) == (LOADED_HERE, 0.365316)
    assert loaded(2) == (LOADED_BY_WORKERS, 0.286839)
    assert loaded(2, persistent=True) == (LOADED_BY_WORKERS, 0.365316)
    assert loaded(2, multiprocessing_context="spawn") == (LOADED_BY_WORKERS, 0.286839)


def test_loaders_switch_shuffling():
    plain = [b.tolist() for b in DataLoader(numbers(4).shuffle(), 2, shuffle=False)]
    assert plain == [[0, 1], [2, 3]]
    with pytest.warns(UserWarning, match="Adding one at the end"):
        loader = DataLoader(numbers(40), batch_size=None, shuffle=True)
    found = list(loader)
    assert sorted(found) == [*range(40)] != found
    assert [*DataLoader(numbers(5).batch(2), batch_size=None)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="unspecified sampler"):
        DataLoader(numbers(4), sampler=[1, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_one_order(workers):
    def rank():
        torch.manual_seed(dist.get_rank())  # the first rank's seed is for all
        pipe = numbers(16).shuffle().sharding_filter()
        return list(DataLoader(pipe, batch_size=None, num_workers=workers))

    first, second = dist.simulate(2, rank)
    assert len(first) == len(second) == 8 and sorted(first + second) == [*range(16)]
