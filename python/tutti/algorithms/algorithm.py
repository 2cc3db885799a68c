"""An algorithm, and running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tutti import _core
from tutti._devices import lies_on_device, stream_handle, take
from tutti.algorithms.buffers import Memory, memory_of, type_of
from tutti.algorithms.types import AlgorithmType, CollectiveBufferMode, DataType, ReduceOp

if TYPE_CHECKING:
    from tutti.algorithms.executor import ExecutionPlan, Executor

__all__ = ["Algorithm", "AlgorithmBuilder"]

_LARGEST = 2**64 - 1


def core_of(comm: Any) -> _core.Communicator:
    """What runs the calls of a :class:`tutti.Communicator` or a :class:`tutti.CommGroup`."""
    inner = getattr(comm, "communicator", comm)
    core = getattr(inner, "_core", None)
    if not isinstance(core, _core.Communicator):
        raise TypeError(f"comm is a tutti.Communicator or a tutti.CommGroup, not {type(comm).__name__}")
    return core


class Family:
    """Algorithms of one name, one for each number of ranks: ``make(ranks)`` gives it, or raises why there is none."""

    def __init__(self, name: str, collective: str, make: Callable[[int], _core.UserAlgorithm], kind: str) -> None:
        self.name = name
        self.collective = collective
        self.kind = kind
        self._make = make
        self._made: dict[int, _core.UserAlgorithm | ValueError | NotImplementedError] = {}

    def of(self, ranks: int) -> _core.UserAlgorithm:
        """That for ``ranks`` ranks, made once. What ``make`` raises if there is none."""
        if ranks not in self._made:
            try:
                self._made[ranks] = self._make(ranks)
            except (ValueError, NotImplementedError) as error:
                self._made[ranks] = error
        made = self._made[ranks]
        if isinstance(made, Exception):
            raise made.with_traceback(None)
        return made


class Algorithm:
    """One way to carry out one collective.

    Made by :func:`tutti.compile` and :func:`tutti.compile_native`, or found in an :class:`AlgorithmCollection`. It
    belongs to no communicator: each that runs it makes what it needs at its first call.
    """

    class Constraint:
        """Where an algorithm may run: how many ranks, and, unless a call names it, how many of them a host has.

        0 is any number.
        """

        def __init__(self, world_size: int = 0, n_ranks_per_node: int = 0) -> None:
            if world_size < 0 or n_ranks_per_node < 0:
                raise ValueError("numbers of ranks are not negative; 0 means any")
            self.world_size = world_size
            self.n_ranks_per_node = n_ranks_per_node

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Algorithm.Constraint) and vars(self) == vars(other)

        def __hash__(self) -> int:
            return hash((self.world_size, self.n_ranks_per_node))

        def __repr__(self) -> str:
            return f"Constraint(world_size={self.world_size}, n_ranks_per_node={self.n_ranks_per_node})"

    def __init__(
        self,
        id: str | None = None,
        execution_plan: ExecutionPlan | None = None,
        native_handle: _core.UserAlgorithm | Family | None = None,
        tags: Mapping[str, int] | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """Of a plan, or of what :func:`tutti.compile_native` has made. ``ValueError`` without either."""
        if (execution_plan is None) == (native_handle is None):
            raise ValueError("an algorithm is made of an execution_plan or of a native_handle")
        source = native_handle if execution_plan is None else execution_plan._handle
        assert source is not None
        if constraint is not None and isinstance(source, _core.UserAlgorithm):
            source = source.with_limits(
                source.min_bytes, source.max_bytes, constraint.world_size, constraint.n_ranks_per_node
            )
        self._source = source
        self._id = id
        self._tags = dict(tags or {})
        self._range: tuple[int, int] | None = None

    @classmethod
    def create_from_native_capsule(cls, obj: Any) -> Algorithm:
        """Of what a function of a compiled module returned (:func:`tutti.compile_native`). ``TypeError`` else."""
        handle = getattr(obj, "handle", None)
        if not isinstance(handle, _core.UserAlgorithm):
            raise TypeError(f"{type(obj).__name__} comes from no module of tutti.compile_native")
        return cls(native_handle=handle)

    def _resolve(self, ranks: int) -> _core.UserAlgorithm:
        """What a communicator of ``ranks`` ranks runs."""
        handle = self._source.of(ranks) if isinstance(self._source, Family) else self._source
        if self._range is None:
            return handle
        return handle.with_limits(*self._range, handle.ranks, handle.ranks_per_host)

    def _resolve_if_fits(self, ranks: int) -> _core.UserAlgorithm | None:
        """The same, or None if the library has no algorithm of this name for so many ranks."""
        try:
            return self._resolve(ranks)
        except (ValueError, NotImplementedError):
            if not isinstance(self._source, Family):
                raise
            return None

    @property
    def name(self) -> str:
        """Its name, by which errors, metrics and selectors know it."""
        return self._source.name

    @property
    def collective(self) -> str:
        """What it carries out: ``"allreduce"``, ``"allgather"``, ..."""
        if isinstance(self._source, Family):
            return self._source.collective
        return self._source.collective_name.replace("_", "")

    @property
    def message_size_range(self) -> tuple[int, int]:
        """The least and the most bytes of one rank's block that it takes."""
        if self._range is not None:
            return self._range
        return (0, _LARGEST) if isinstance(self._source, Family) else (self._source.min_bytes, self._source.max_bytes)

    def set_message_size_range(self, min_message_size: int, max_message_size: int) -> None:
        """Changes :attr:`message_size_range`, on all ranks alike. ``TypeError`` for plans, which have their own."""
        if self.is_dsl_algorithm():
            raise TypeError("a plan has its range of sizes from its program: AlgoSpec's min_ and max_message_size")
        if not 0 <= min_message_size <= max_message_size <= _LARGEST:
            raise ValueError(f"{min_message_size} to {max_message_size} is no range of sizes")
        self._range = (min_message_size, max_message_size)

    @property
    def tags(self) -> dict[str, int]:
        """Hints for selectors."""
        return self._tags

    @property
    def constraint(self) -> Constraint:
        """Where it may run."""
        if isinstance(self._source, Family):
            return Algorithm.Constraint()
        return Algorithm.Constraint(self._source.ranks, self._source.ranks_per_host)

    @property
    def buffer_mode(self) -> CollectiveBufferMode:
        """What it is made for; it runs calls of either kind."""
        if isinstance(self._source, Family) or self._source.kind != "plan":
            return CollectiveBufferMode.ANY
        return CollectiveBufferMode.IN_PLACE if self._source.in_place else CollectiveBufferMode.OUT_OF_PLACE

    @property
    def type(self) -> AlgorithmType:
        """Plan, or C++ and CUDA."""
        return AlgorithmType.DSL if self._source.kind == "plan" else AlgorithmType.NATIVE

    @property
    def id(self) -> str:
        """What tells it from all others. Ranks compare a hash of the same in every call."""
        if self._id is not None:
            return self._id
        return "" if isinstance(self._source, Family) else f"{self._source.identity:08x}"

    def is_dsl_algorithm(self) -> bool:
        """Whether it is a plan."""
        return self.type is AlgorithmType.DSL

    def is_native_algorithm(self) -> bool:
        """Whether it is C++ or CUDA."""
        return self.type is AlgorithmType.NATIVE

    def execute(
        self,
        comm: Any,
        input_buffer: Any,
        output_buffer: Any,
        input_size: int | None = None,
        output_size: int | None = None,
        dtype: DataType | None = None,
        op: ReduceOp = ReduceOp.NOP,
        stream: Any = 0,
        executor: Executor | None = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: Mapping[str, int] | None = None,
        accum_dtype: DataType | None = None,
        *,
        root: int = -1,
        timeout: float = 0,
    ) -> int:
        """Runs it as the next collective of ``comm``; all ranks call it alike. Returns 0; what goes wrong is raised.

        Buffers are addresses, with sizes in bytes and a ``dtype``; or arrays (NumPy, torch tensors,
        :class:`tutti.RawBuffer`, anything with DLPack), which bring these with them; in main memory or on a GPU. The
        same buffer twice is in place. The output is writeable, and requires no gradient; a torch tensor is none that
        is conjugated or negated only when it is read. ``op`` may be left out for plans. ``extras`` reach native
        algorithms. ``root`` is that of rooted collectives, and of plans as they say; ``timeout`` is in seconds, 0 the
        communicator's.

        On a GPU (plans, and kernels of a ``.cu`` file) the call is enqueued on ``stream`` and returns; 0 is CUDA's
        default stream. Main memory has no streams: there ``stream`` is 0. ``nblocks`` and ``nthreads_per_block`` say
        how a kernel is launched, alike on all ranks; 0 is as it says itself. Plans and main memory have no such choice.
        ``symmetric_memory`` means nothing here. Narrow floats always accumulate in float32, so ``accum_dtype`` may be
        that or the type itself.

        Raises as every call does: ``ValueError`` and ``NotImplementedError`` for arguments, before anything is sent and
        with the group as before; ``RuntimeError`` when ranks run different algorithms, or one has died.
        """
        core = core_of(comm)
        if executor is not None and executor._core is not core:
            raise ValueError("the executor was made for another communicator than comm")
        if input_buffer is None and output_buffer is None:
            raise ValueError("neither input nor output: pass the buffers that this rank has in this collective")
        device = _device_of(input_buffer, output_buffer)
        if device is None and stream not in (0, None):
            raise ValueError("main memory has no streams: leave stream 0")
        if nblocks < 0 or nthreads_per_block < 0:
            raise ValueError("nblocks and nthreads_per_block are not negative")
        kind = dtype or type_of(input_buffer) or type_of(output_buffer)
        if not isinstance(kind, DataType):
            raise ValueError("dtype says of which type the elements are: tutti.DataType.float32, ...")
        if not isinstance(op, ReduceOp):
            raise ValueError(f"op says how elements are combined: tutti.ReduceOp.SUM, ..., not {op!r}")
        wide = accum_dtype is DataType.float32 and kind.name.startswith(("float", "bfloat")) and kind.itemsize <= 4
        if accum_dtype not in (None, kind) and not wide:
            raise ValueError(f"{kind.name} does not accumulate in {accum_dtype}: only narrow floats do, in float32")
        algorithm = self._resolve(core.size)
        if device is not None:
            devices = getattr(comm, "communicator", comm)._devices
            handle = stream_handle(stream) or 0
            ends = [
                _device_end(devices, buffer, size, which, handle)
                for buffer, size, which in ((input_buffer, input_size, "input"), (output_buffer, output_size, "output"))
            ]
            _of_type([dtype for _, dtype in ends], kind)
            places = [end[:2] for end, _ in ends]
            launch = (nblocks, nthreads_per_block)
            devices.run_by(
                core.size, algorithm, *places, kind.value, op.value or None, root, timeout, device, handle, *launch
            )
            return 0
        # Kept here until the call is over.
        source = _end(input_buffer, input_size, "input", kind, False)
        target = _end(output_buffer, output_size, "output", kind, True)
        _core.run_by(
            core,
            algorithm,
            source[:2],
            target[:2],
            kind.value,
            op.value or None,
            root,
            {name: int(value) for name, value in (extras or {}).items()},
            timeout,
        )
        return 0

    def reset(self) -> None:
        """Does nothing: a call leaves no state behind that a later one would see."""

    def __repr__(self) -> str:
        return f"<tutti.Algorithm {self.name!r} for {self.collective}, {self.type.value}>"


def _refuse_bool(buffer: Any, what: str) -> None:
    if isinstance(buffer, bool):
        raise TypeError(f"the {what} is {buffer}, neither an address nor an array")


def _end(buffer: Any, size: int | None, what: str, dtype: DataType, written: bool) -> Memory:
    """One end of a call."""
    if size is not None and size < 0:
        raise ValueError(f"the {what} has {size} bytes")
    if buffer is None:
        return Memory(0, size or 0, None)
    _refuse_bool(buffer, what)
    if isinstance(buffer, int):
        if size is None:
            raise ValueError(f"an address says nothing of its size: pass {what}_size in bytes")
        return Memory(buffer, size, None)
    memory = memory_of(buffer, what, written)
    found = type_of(buffer)
    if found is not None and found is not dtype:
        raise ValueError(f"the {what} holds {found.name}, not {dtype.name}")
    if size is not None and size > memory.bytes:
        raise ValueError(f"{what}_size is {size}, but the array has {memory.bytes} bytes")
    return memory if size is None else memory._replace(bytes=size)


def _device_of(*buffers: Any) -> int | None:
    """The GPU on which the buffers of a call lie, -1 if they do not say which; None: in main memory."""
    for buffer in buffers:
        if isinstance(buffer, int) and not isinstance(buffer, bool):
            found = _core.device_of(buffer)
        else:
            found = _core_device(buffer)
        if found is not None:
            return found
    return None


def _core_device(array: Any) -> int | None:
    if not lies_on_device(array):
        return None
    return int(array.__dlpack_device__()[1]) if hasattr(array, "__dlpack_device__") else -1


def _device_end(
    devices: _core.DeviceCommunicator, buffer: Any, size: int | None, what: str, stream: int
) -> tuple[Memory, str | None]:
    """One end of a call on a GPU, ordered before ``stream``, and its element type."""
    _refuse_bool(buffer, what)
    if buffer is None or isinstance(buffer, int):
        if buffer is not None and size is None:
            raise ValueError(f"an address says nothing of its size: pass {what}_size in bytes")
        return Memory(buffer or 0, size or 0, None), None
    if not lies_on_device(buffer):
        raise ValueError(f"the {what} is in main memory, and the other buffer is on a GPU")
    array = take(devices, buffer, what, what == "output", stream)
    assert array is not None
    if size is not None and not 0 <= size <= array.nbytes:
        raise ValueError(f"{what}_size is {size}, but the array has {array.nbytes} bytes")
    return Memory(array.address, array.nbytes if size is None else size, array), array.dtype


def _of_type(ends: list[str | None], dtype: DataType) -> None:
    for found in ends:
        if found is not None and found != dtype.value and not _is_byte_view(found, dtype):
            raise ValueError(f"an array holds {found}, not {dtype.name}")


def _is_byte_view(found: str, dtype: DataType) -> bool:
    return found == "u8" and dtype.itemsize == 1  # 8-bit floats, which DLPack has as bytes


class AlgorithmBuilder:
    """Something that makes an algorithm when a collection is built: a function without arguments."""

    def __init__(self, algorithm_builder: Callable[[], Algorithm]) -> None:
        self._algorithm_builder = algorithm_builder

    def build(self) -> Algorithm:
        """The algorithm. ``TypeError`` if the function gives something else."""
        algorithm = self._algorithm_builder()
        if not isinstance(algorithm, Algorithm):
            raise TypeError(f"an algorithm builder returned {type(algorithm).__name__}, no Algorithm")
        return algorithm
