"""From a program of the language to an algorithm that a communicator runs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from tutti.algorithms.algorithm import Algorithm
from tutti.algorithms.executor import ExecutionPlan
from tutti.language.program import CollectiveProgram
from tutti.language.utils import AlgoSpec

__all__ = ["DslCompiler", "compile"]


class DslCompiler:
    """What :data:`tutti.compile` is: call it."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _plans
        self._plans: dict[tuple[str, int], ExecutionPlan] = {}

    def __call__(
        self, algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int, **kwargs: Any
    ) -> Algorithm:
        """:meth:`compile`."""
        return self.compile(algo, algo_spec, rank, **kwargs)

    def compile(
        self, algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int, **kwargs: Any
    ) -> Algorithm:
        """Writes the program ``algo(algo_spec, **kwargs)``, compiles it to a plan and proves it.

        A plan that this process has proven is not proven again. Raises ``ValueError`` if ``algo`` is no function or
        ``rank`` none of the program's, and with the verifier's findings and the lines of the program if the plan is
        wrong; :class:`tutti.language.ProgramError` for a statement that no plan can carry out.
        """
        if not callable(algo):
            raise ValueError(f"algo is a function of an AlgoSpec, not {type(algo).__name__}")
        program = algo(algo_spec, **kwargs)
        if not isinstance(program, CollectiveProgram):
            raise ValueError(f"{_name(algo)} returned {type(program).__name__}, no CollectiveProgram")
        if program.num_ranks != algo_spec.world_size:
            raise ValueError(
                f"{_name(algo)} wrote a program for {program.num_ranks} ranks where the spec has {algo_spec.world_size}"
            )
        if not 0 <= rank < program.num_ranks:
            raise ValueError(f"rank {rank} is none of the {program.num_ranks} of program {program.name!r}")
        plan = self._plan(program.to_json(indent=None, separators=(",", ":")), rank, _name(algo))
        constraint = Algorithm.Constraint(program.num_ranks, algo_spec.nranks_per_node)
        return Algorithm(execution_plan=plan, tags=algo_spec.tags, constraint=constraint)

    def _plan(self, text: str, rank: int, place: str) -> ExecutionPlan:
        with self._lock:
            found = self._plans.get((text, rank))
        if found is None:
            found = ExecutionPlan.from_text(text, rank, place)
            with self._lock:
                self._plans[text, rank] = found
        return found


def _name(algo: Callable[..., Any]) -> str:
    return str(getattr(algo, "__qualname__", type(algo).__name__))


compile = DslCompiler()
