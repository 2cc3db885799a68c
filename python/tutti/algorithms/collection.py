"""Algorithms by collective and name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tutti.algorithms.algorithm import Algorithm

__all__ = ["AlgorithmCollection"]


class AlgorithmCollection:
    """Algorithms in the order in which they were added. No two of a collective have the same name."""

    def __init__(self, algorithms: Iterable[Algorithm] = ()) -> None:
        self._algorithms: list[Algorithm] = []
        for algorithm in algorithms:
            self.register_algorithm(algorithm.collective, algorithm.name, algorithm)

    def __iter__(self) -> Iterator[Algorithm]:
        return iter(self._algorithms)

    def __len__(self) -> int:
        return len(self._algorithms)

    def __getitem__(self, index: int) -> Algorithm:
        return self._algorithms[index]

    def get_by_collective(self, collective: str) -> list[Algorithm]:
        """All for one collective, spelt ``"allreduce"`` or ``"all_reduce"``."""
        return [algorithm for algorithm in self if algorithm.collective == collective.replace("_", "")]

    def for_collective(self, collective: str) -> dict[str, Algorithm]:
        """All for one collective by their names."""
        return {algorithm.name: algorithm for algorithm in self.get_by_collective(collective)}

    def to_mapping(self) -> dict[str, dict[str, Algorithm]]:
        """All, by collective and name: what a selector function is given."""
        return {name: self.for_collective(name) for name in dict.fromkeys(one.collective for one in self)}

    def register_algorithm(self, collective: str, algo_name: str, algorithm: Algorithm) -> None:
        """Adds one at the end. ``ValueError`` if it is for another collective, named otherwise, or there already."""
        if algorithm.collective != collective.replace("_", ""):
            raise ValueError(f"{algorithm.name!r} is an algorithm for {algorithm.collective}, not {collective}")
        if algorithm.name != algo_name:
            raise ValueError(f"the algorithm's name is {algorithm.name!r}, not {algo_name!r}")
        if algo_name in self.for_collective(collective):
            raise ValueError(f"there is an algorithm {algo_name!r} for {algorithm.collective} already")
        self._algorithms.append(algorithm)

    register = register_algorithm
