r"""The paper's answer transformation (DAPO, section 3.5, appendix A): problems rewritten so that answers are integers.

    python docs/examples/transform_answers.py problems.jsonl models/strong integers.jsonl

A model writes four sections: the form of the answer (`k - m\sqrt{n}`), the rewritten statement (asking for k + m + n),
its solution, and the integer. The first usable one of `--attempts` rewritings is solved `--solutions` times from its
statement only, and kept if more than half of the solutions give its integer. The output is a file of problems; what is
left out goes to `integers.rejected.jsonl` with the reason. Run again after a kill, it continues.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch

from dapo_lit.data.problem import Problem
from dapo_lit.data.sources import load_problems
from dapo_lit.data.templates import PromptTemplate
from dapo_lit.engines.protocol import RolloutEngine, SampleKey, SampleRequest, Sampling, token_ids
from dapo_lit.engines.torch_engine.engine import TorchEngine
from dapo_lit.policy.load import eos_ids, load_model, load_tokenizer
from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier

HEADINGS = ("ANSWER FORMAT", "REWRITTEN STATEMENT", "SOLUTION", "INTEGER ANSWER")
_HEADING = re.compile(rf"^[#*<\s]*(?:\d\.\s*)?({'|'.join(HEADINGS)})[>*:#\s]*$", re.MULTILINE)


class RejectedError(ValueError):
    """The reason why a rewriting cannot be used."""


def question(problem: Problem) -> str:
    return f"Problem:\n{problem.problem}\n\nAnswer:\n{problem.answer}"


def integer(text: str) -> int | None:
    r"""`text` as an integer, ignoring dollar signs, a box and commas; None if it is anything else.

    >>> integer("$1,080$."), integer(r"\boxed{-3}"), integer("11 - 2\\sqrt{6}")
    (1080, -3, None)
    """
    bare = text.strip().rstrip(".").strip("$ ")
    boxed = re.fullmatch(r"\\boxed\s*\{(.*)\}", bare)
    bare = (boxed[1] if boxed else bare).strip("$ ").removeprefix("Answer:").strip("$ ")
    if len(bare) > 60 or not re.fullmatch(r"[-\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)", bare):
        return None
    return int(bare.replace(",", "").replace("\u2212", "-"))


def read_rewriting(original: Problem, text: str) -> dict[str, str]:
    """The four sections by heading.

    Raises:
        RejectedError: one is missing, empty or out of order; the last is not an integer; or the statement is the
            original one or gives its answer away (of four characters or more, as `1/2` may occur anywhere).
    """
    found = list(_HEADING.finditer(text))
    if [match[1] for match in found] != list(HEADINGS):
        raise RejectedError("malformed: the four sections are not there once each, in their order")
    ends = [*(match.start() for match in found[1:]), len(text)]
    sections = {match[1]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}
    if empty := [name for name, section in sections.items() if not section]:
        raise RejectedError(f"malformed: the section {empty[0]} is empty")
    if integer(sections["INTEGER ANSWER"]) is None:
        raise RejectedError(f"not_integer: the answer is {sections['INTEGER ANSWER'][:80]!r}")
    texts = (sections["REWRITTEN STATEMENT"], original.problem, original.answer)
    new, old, answer = (re.sub(r"[\s$]|\\[,;!]", "", text).replace("dfrac", "frac").lower() for text in texts)
    if new == old:
        raise RejectedError("unchanged: the rewritten statement is the original one")
    if len(answer) >= 4 and answer in new and answer not in old:
        raise RejectedError("quotes_answer: the rewritten statement gives the original answer away")
    return sections


class Transformer:
    def __init__(self, engine: RolloutEngine, tokenizer: Any, verifier: Verifier, args: argparse.Namespace) -> None:
        self.engine, self.tokenizer, self.verifier, self.args = engine, tokenizer, verifier, args
        self.rewriting, self.solving = map(PromptTemplate.load, (args.rewriting_template, args.solving_template))

    def outcome(self, problem: Problem) -> dict[str, Any]:
        """The row to write: of a problem with an integer answer, or of a reject with its `reason`."""
        origin = {"id": problem.id, "original_problem": problem.problem, "original_answer": problem.answer}
        if (value := integer(problem.answer)) is not None:
            return {"problem": problem.problem, "answer": str(value), **origin}
        try:
            sections = self.rewritten(problem)
            statement, value = sections["REWRITTEN STATEMENT"], integer(sections["INTEGER ANSWER"])
            solutions = self.texts(problem.id, self.solving, statement, 1, self.args.solutions)
            scores = self.verifier.score([(RewardProblem(problem.id, "", str(value)), text) for text, _ in solutions])
            agreeing = sum(score.correct for score in scores)
            if 2 * agreeing <= len(scores):
                raise RejectedError(f"inconsistent: {agreeing} of {len(scores)} solutions give {value}")
        except RejectedError as error:
            return {"reason": str(error), **origin}
        return {"problem": statement, "answer": str(value), "answer_format": sections["ANSWER FORMAT"], **origin}

    def rewritten(self, problem: Problem) -> dict[str, str]:
        """The first usable rewriting; RejectedError with the first one's fault if none is."""
        faults = []
        for text, finished in self.texts(problem.id, self.rewriting, question(problem), 0, self.args.attempts):
            try:
                if not finished:
                    raise RejectedError("unfinished: the rewriting was cut off")
                return read_rewriting(problem, text)
            except RejectedError as error:
                faults.append(error)
        raise faults[0]

    def texts(self, name: str, template: PromptTemplate, text: str, step: int, count: int) -> list[tuple[str, bool]]:
        """(text, whether it ended) of `count` samples; rewritings are step 0 and solutions step 1 of the noise."""
        prompt = token_ids(template.encode(text, self.tokenizer))
        requests = [SampleRequest(SampleKey(step, name, 0, index), prompt) for index in range(count)]
        sampled = self.engine.generate(requests, Sampling(self.args.max_tokens, seed=self.args.seed))
        samples = sorted(sampled, key=lambda sample: sample.key.sample_index)
        return [(self.tokenizer.decode(s.response_ids, skip_special_tokens=True), s.finished) for s in samples]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", help="a file, folder or hub id, as task.path")
    parser.add_argument("model", help="a folder or hub id; the strongest model you have")
    parser.add_argument("output", type=Path)
    parser.add_argument("--rewriting-template", default=str(Path(__file__).with_name("answer_transformation.yaml")))
    parser.add_argument("--solving-template", default="dapo", help="with an answer line at the end")
    for name, default in (("attempts", 2), ("solutions", 8), ("max-tokens", 4096), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    model, tokenizer = load_model(args.model), load_tokenizer(args.model)
    engine = TorchEngine(model.config, eos_ids=eos_ids(model, tokenizer), device=model.device, dtype=model.dtype)
    engine.sync_weights(model.state_dict().items(), version=0)
    files = {True: args.output, False: args.output.with_suffix(".rejected.jsonl")}
    lines = [line for file in files.values() if file.exists() for line in file.open(encoding="utf-8")]
    done = {json.loads(line)["id"] for line in lines}
    with Verifier(rule="numeric", extraction="answer_line") as verifier, torch.inference_mode():
        transformer = Transformer(engine, tokenizer, verifier, args)
        for problem in load_problems(args.problems):
            if problem.id not in done:
                row = transformer.outcome(problem)
                with files["answer" in row].open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(problem.id, row.get("reason", row.get("answer")), flush=True)


if __name__ == "__main__":
    main()
