"""What becomes of twenty rewards in TRL's forms when they are trained here: `python benchmarks/trl_examples.py`.

The examples are this project's own, in the forms of TRL's documentation, examples and `trl.rewards`
(tests/rewards/trl_examples.py says which). One step each of a random model with a few thousand parameters; written to
benchmarks/results/trl_examples.json. tests/rewards/test_trl_examples.py runs the same.
"""

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("rewards", "lit", "policy")]
    from trl_examples import EXAMPLES
    from trl_runs import in_process, tiny_model, trained

    from ablations.errors import UserError
    from dapo_lit import api

    api._command = in_process
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
        for name in EXAMPLES:
            said = ""
            try:
                trained(name, model, Path(folder) / name)
            except UserError as error:
                said = str(error)
            rows.append({"example": name, "trains": not said, "said": said})
            print(rows[-1], flush=True)
    file = ROOT / "benchmarks" / "results" / "trl_examples.json"
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
