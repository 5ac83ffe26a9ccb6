"""The order in which problems are visited: a new permutation every epoch, and an exact position in it.

The state is one integer, the same on every rank: a resumed run, also on another number of ranks, continues the same
sequence of problems.
"""

from dataclasses import dataclass, field

from dapo_lit.seeds import epoch_permutation


@dataclass
class ProblemOrder:
    """An endless iteration over the problems, epoch after epoch.

    >>> order = ProblemOrder(num_problems=3, seed=0)
    >>> sorted(order.next() for _ in range(3))
    [0, 1, 2]
    """

    num_problems: int
    seed: int
    position: int = 0
    """Problems returned since the start of the run, over all epochs."""
    _cached: tuple[int, list[int]] | None = field(default=None, init=False, repr=False, compare=False)

    def next(self) -> int:
        """The index of the next problem."""
        epoch, place = divmod(self.position, self.num_problems)
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, epoch_permutation(self.num_problems, self.seed, epoch))
        self.position += 1
        return self._cached[1][place]

    def state_dict(self) -> dict[str, int]:
        return {"num_problems": self.num_problems, "seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken.

        Raises ValueError if the number of problems or the seed differs: the position would refer to other problems.
        """
        for name in ("num_problems", "seed"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"cannot continue the order of problems: {name} was {state[name]}, is now {getattr(self, name)}; "
                    "use the same data, filters and seed, or start a new run with resume=false"
                )
        self.position = state["position"]
