import subprocess
import sys

from dapo_lit.rewards.verifier import Reference, Verifier


def test_what_is_decided_in_process_is_ready_at_once_and_collected_once():
    with Verifier(rule="dapo", extraction="answer_line", wrong_value=0.0) as verifier:
        verifier.submit(("a", 0), Reference("a", "7"), "Answer: 7")
        verifier.submit(("a", 1), Reference("a", "7"), "Answer: 8")
        assert [(ticket, score.value) for ticket, score in verifier.collect()] == [(("a", 0), 1.0), (("a", 1), 0.0)]
        assert verifier.collect() == [] == verifier.drain()


def test_the_numeric_path_imports_neither_sympy_nor_torch_and_starts_no_process():
    code = """
import sys, subprocess
from dapo_lit.rewards.verifier import Reference, Verifier
def refuse(*args, **kwargs): raise AssertionError("a process was started")
subprocess.Popen = refuse
with Verifier(rule="numeric", extraction="hash") as verifier:
    assert verifier.score([(Reference("a", "20"), "#20")])[0].correct
assert not {"sympy", "torch", "math_verify", "mpmath"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
