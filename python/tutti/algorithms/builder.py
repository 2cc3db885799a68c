"""Which algorithms a communicator has beside the library's own, and who chooses among them."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

from tutti import _core, _formed
from tutti.algorithms.algorithm import Algorithm, AlgorithmBuilder, core_of
from tutti.algorithms.collection import AlgorithmCollection
from tutti.algorithms.defaults import default_algorithms
from tutti.algorithms.types import CollectiveBufferMode, DataType, ReduceOp

__all__ = ["AlgorithmCollectionBuilder", "CollectiveRequest", "Selector"]

# Of the algorithms by collective and name, and a request; the answer is one of them, or None.
Selector = Callable[[dict[str, dict[str, Algorithm]], "CollectiveRequest"], Algorithm | None]


@dataclass(frozen=True)
class CollectiveRequest:
    """A call for which a selector function is asked. All but ``rank`` and the buffers is the same on all ranks."""

    collective: str  # "allreduce", ...
    message_size: int  # bytes of this rank's input
    dtype: DataType | None  # None for types that have no DataType
    op: ReduceOp
    world_size: int
    n_ranks_per_node: int
    rank: int
    input_buffer: int  # addresses
    output_buffer: int
    stream: int = 0
    hints: dict[str, int] = field(default_factory=dict)

    def buffer_mode(self) -> CollectiveBufferMode:
        """Whether input and output are one buffer."""
        same = self.input_buffer == self.output_buffer
        return CollectiveBufferMode.IN_PLACE if same else CollectiveBufferMode.OUT_OF_PLACE


# Their input has a block for every rank.
_WHOLE = {name for name in _core.collectives() if _core.collective_traits(name)["input_blocks"]}
_DTYPES = {kind.value: kind for kind in DataType}
_OPS = {op.value: op for op in ReduceOp}


class _Reset:
    """``reset`` of the class is that of the process's builder, ``reset`` of a builder its own."""

    def __get__(self, builder: AlgorithmCollectionBuilder | None, owner: type) -> Callable[[], None]:
        if builder is not None:
            return builder._clear
        return AlgorithmCollectionBuilder._forget_default


class AlgorithmCollectionBuilder:
    """Collects algorithms and selector functions.

    ``AlgorithmCollectionBuilder()`` is the process's builder, the same object each time: what it holds when a
    communicator or a torch.distributed group ``tutti`` is formed is what that one has for its life. So have groups of
    other libraries whose calls the library under NCCL's name runs.
    ``AlgorithmCollectionBuilder(comm)`` is the builder of one :class:`tutti.Communicator`, :class:`tutti.CommGroup` or
    torch group; :meth:`build` gives its algorithms to that one, which has them from the next call on. All ranks do the
    same; if they do not, the next call raises on all of them.

    Without a selector function, the first algorithm that fits a call takes it. With one, what it answers, where that
    fits; ``None`` asks the fallback function, and ``None`` of that leaves the call to the library, as do calls that
    nothing fits.
    """

    _default: AlgorithmCollectionBuilder | None = None
    _of: ClassVar[WeakKeyDictionary[Any, AlgorithmCollectionBuilder]] = WeakKeyDictionary()

    reset = _Reset()

    def __new__(cls, communicator: Any = None) -> AlgorithmCollectionBuilder:
        """The one of the process or of ``communicator``. ``TypeError`` if that is none."""
        if communicator is None:
            if cls._default is None:
                AlgorithmCollectionBuilder._default = super().__new__(cls)
            assert cls._default is not None
            return cls._default
        target = getattr(communicator, "communicator", communicator)
        if target not in cls._of:
            _installer(target)  # refuses what is no communicator
            cls._of[target] = super().__new__(cls)
        return cls._of[target]

    def __init__(self, communicator: Any = None) -> None:
        if hasattr(self, "_builders"):
            return
        self._install = (
            None if communicator is None else _installer(getattr(communicator, "communicator", communicator))
        )
        self._builders: list[AlgorithmBuilder | Algorithm] = []
        self._selector: Selector | None = None
        self._fallback: Selector | None = None

    def add_algorithm_builder(self, algorithm_builder: AlgorithmBuilder | Algorithm) -> None:
        """Adds an algorithm, or what will make one at :meth:`build`. ``ValueError`` for anything else."""
        if not isinstance(algorithm_builder, AlgorithmBuilder | Algorithm):
            raise ValueError(f"an AlgorithmBuilder or an Algorithm is added, not {type(algorithm_builder).__name__}")
        self._builders.append(algorithm_builder)

    def set_algorithm_selector(self, selector: Selector | None) -> None:
        """Sets the function that chooses: ``selector(algorithms, request)``; the same answers on all ranks."""
        self._selector = _function(selector)

    def set_fallback_algorithm_selector(self, selector: Selector | None) -> None:
        """Sets the function that is asked where the first has no answer."""
        self._fallback = _function(selector)

    def build(self) -> AlgorithmCollection:
        """The algorithms that were added. A communicator's own builder also gives them to its communicator."""
        collection = self._collect()
        if self._install is not None:
            self._install(lambda ranks: self._handles(collection, ranks), self._choice(collection))
        return collection

    def build_default_algorithms(
        self, scratch_buffer: int = 0, scratch_buffer_size: int = 0, rank: int = 0
    ) -> AlgorithmCollection:
        """The algorithms that come with Tutti: its programs, the library's own, and MSCCL++'s names for them.

        They take memory of the communicator that runs them, so the arguments are not used.
        """
        if scratch_buffer_size < 0 or rank < 0:
            raise ValueError("the size of a buffer and a rank are not negative")
        return default_algorithms()

    def _collect(self) -> AlgorithmCollection:
        return AlgorithmCollection(one.build() if isinstance(one, AlgorithmBuilder) else one for one in self._builders)

    @staticmethod
    def _handles(collection: AlgorithmCollection, ranks: int) -> list[_core.UserAlgorithm]:
        handles = (algorithm._resolve_if_fits(ranks) for algorithm in collection)
        return [handle for handle in handles if handle is not None]

    def _choice(self, collection: AlgorithmCollection) -> Callable[..., _core.UserAlgorithm | None] | None:
        """What the core asks; None where the first that fits is to be taken."""
        functions = [function for function in (self._selector, self._fallback) if function is not None]
        if not functions:
            return None
        known = default_algorithms().to_mapping()
        for name, own in collection.to_mapping().items():
            known[name] = {**known.get(name, {}), **own}

        def choose(
            collective: str, dtype: str, op: str, block: int, rank: int, size: int, per_host: int, *ends: int
        ) -> _core.UserAlgorithm | None:
            whole = block * size if collective in _WHOLE else block
            request = CollectiveRequest(
                collective=collective.replace("_", ""),
                message_size=whole,
                dtype=_DTYPES.get(dtype),
                op=_OPS.get(op, ReduceOp.NOP),
                world_size=size,
                n_ranks_per_node=per_host,
                rank=rank,
                input_buffer=ends[0],
                output_buffer=ends[1],
            )
            for function in functions:
                answer = function(known, request)
                if answer is None:
                    continue
                if not isinstance(answer, Algorithm):
                    raise TypeError(f"a selector answers with an Algorithm or None, not {type(answer).__name__}")
                return answer._resolve_if_fits(size)
            return None

        return choose

    def _clear(self) -> None:
        """Forgets everything; a communicator goes back to the library's own."""
        self._builders.clear()
        self._selector = self._fallback = None
        if self._install is not None:
            self._install(lambda ranks: [], None)

    @staticmethod
    def _forget_default() -> None:
        if AlgorithmCollectionBuilder._default is not None:
            AlgorithmCollectionBuilder._default._clear()


Install = Callable[[Callable[[int], list[_core.UserAlgorithm]], Any], None]


def _function(selector: Selector | None) -> Selector | None:
    if selector is not None and not callable(selector):
        raise ValueError(f"a selector is a function of the algorithms and a request, not {type(selector).__name__}")
    return selector


def _installer(target: Any) -> Install:
    """What gives algorithms to a communicator, or to the Tutti backend of a torch group. ``TypeError`` for others."""
    if hasattr(target, "_get_backend"):
        from tutti.dist.groups import get_communicator

        backend = get_communicator(target)
        return lambda handles, choose: backend.set_algorithms(_core.algorithm_set(handles(backend.size()), choose))
    core_of(target)
    weak = ref(target)  # the builder is kept for as long as its communicator lives

    def give(handles: Callable[[int], list[_core.UserAlgorithm]], choose: Any) -> None:
        alive = weak()
        if alive is None:
            raise ValueError("the communicator of this builder is gone")
        alive._set_algorithms(handles(alive.size), choose)

    return give


def _defaults(ranks: int) -> tuple[list[_core.UserAlgorithm], Callable[..., _core.UserAlgorithm | None] | None]:
    """What the process's builder holds for so many ranks, and who chooses."""
    builder = AlgorithmCollectionBuilder._default
    if builder is None or not (builder._builders or builder._selector or builder._fallback):
        return [], None
    collection = builder._collect()
    return builder._handles(collection, ranks), builder._choice(collection)


def _give_defaults(ranks: int, install: Callable[[list[_core.UserAlgorithm], Any], None]) -> None:
    """Gives a communicator that has just been formed what the process's builder holds, if anything."""
    handles, choose = _defaults(ranks)
    if handles or choose is not None:
        install(handles, choose)


_formed.register(_give_defaults)
_core.give_algorithms(_defaults)
atexit.register(_core.give_algorithms, None)
