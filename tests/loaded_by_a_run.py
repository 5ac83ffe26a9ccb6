"""Prints the modules of this project that a run on sums loads: `python tests/loaded_by_a_run.py`."""

import sys

PACKAGES = ("dapo_lit", "dapo_lit_tools", "ablations", "math_answers")
GIVEN = ["+experiment=four_sums"]


def main() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:  # the forked process has them
        del sys.modules[name]
    from dapo_lit import compose, train  # noqa: F401
    from dapo_lit.build.components import RunComponents
    from dapo_lit.cli.command import checked
    from dapo_lit.config import Config

    assert checked(GIVEN, Config, None)[0][1] is None
    parts = RunComponents(compose(*GIVEN))
    _ = parts.problems, parts.verifier, parts.engine(), parts.base, parts.reflection
    print(*sorted(name for name in sys.modules if name.startswith(("dapo_lit", "math_answers"))))


if __name__ == "__main__":
    main()
