r"""The verifier's verdicts on responses that others published with labels: `python benchmarks/responses.py FOLDER`.

FOLDER has a clone of each repository in SOURCES, named `owner+name`; nothing of theirs is part of this one. A label is
the publisher's: that of its own scorer, or whether the answer that it took out of the response is the number of the
reference. Labels say which response is right, so none is counted where the publisher's scorer refused the form alone.

Each response is read in the form that its prompt asked for, and as a text of unknown origin (`auto`), and compared by
the rule `sympy`. What differs from the label was looked at one by one: `responses_reviewed.json` says of each who is
right. A difference that is not in there is counted against the verifier, as are those in there where it is wrong.

    python benchmarks/responses.py clones --json benchmarks/results/responses.json
"""

import argparse
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_lit.rewards.functions import RewardProblem
from dapo_lit.rewards.verifier import Verifier
from math_answers import Extraction

REVIEWED: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "responses_reviewed.json").read_text(encoding="utf-8")
)
"""Who is right -> why -> names of responses."""
Fields = dict[str, Any]


@dataclass(frozen=True)
class Response:
    name: str
    """Source, file, row and which of its responses."""
    text: str
    reference: str
    right: bool
    """The publisher's label."""


@dataclass(frozen=True)
class Source:
    """A published file or several, of one form of answers."""

    name: str
    repository: str
    commit: str
    files: tuple[str, ...]
    form: Extraction
    """What its prompt asked for."""
    responses: Callable[[Fields], Iterator[tuple[str, str, bool]]]
    """Of a row: text, reference, label of each response that has one."""

    def read(self, folder: Path) -> Iterator[Response]:
        for number, file in enumerate(self.files):
            for row, fields in enumerate(_rows(folder / self.repository.replace("/", "+"), self.commit, file)):
                for index, (text, reference, right) in enumerate(self.responses(fields)):
                    yield Response(f"{self.name}/{number}/{row}/{index}", text, reference, right)


def _rows(clone: Path, commit: str, file: str) -> list[Fields]:
    shown = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{file}"], capture_output=True, check=True)
    text = shown.stdout.decode("utf-8")
    return json.loads(text) if file.endswith(".json") else [json.loads(line) for line in text.split("\n") if line]


def _grade_school(row: Fields) -> Iterator[tuple[str, str, bool]]:
    reference = row["ground_truth"].rpartition("A: ")[2]
    for name in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
        yield row[name]["solution"], reference, row[name]["is_correct"]


def _abel(row: Fields) -> Iterator[tuple[str, str, bool]]:
    yield row["response"], row["gold"], row["result"]


def _qwen(row: Fields) -> Iterator[tuple[str, str, bool]]:
    for text, right in zip(row["code"], row["score"], strict=True):
        yield text, row["gt"], right


def _graded(row: Fields) -> Iterator[tuple[str, str, bool]]:
    if row.get("format_reward"):  # without it the scorer says nothing about the answer
        yield row["generated_text"], row["ground_truth"], bool(row["answer_reward"])


def _tora(row: Fields) -> Iterator[tuple[str, str, bool]]:
    for text, found in zip(row["code"], row["pred"], strict=True):
        right = _same_number(found, row["gt"])
        if right is not None:
            yield text, row["gt"], right


def _zero_eval(row: Fields) -> Iterator[tuple[str, str, bool]]:
    text, reference = row["output"][0], row["answer"].replace("#", "").strip()
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1], strict=False)["answer"]
    except (ValueError, KeyError, TypeError):
        return
    right = _same_number(str(found), reference)
    if right is not None:
        yield text, reference, right


def _same_number(found: str, reference: str) -> bool | None:
    try:
        return float(found.replace(",", "").strip("$ ")) == float(reference.replace(",", ""))
    except ValueError:
        return None


GSM = ("Meta-Llama-3-8B-Instruct", "Mistral-Nemo-Instruct-2407", "Qwen2-7B-Instruct", "Yi-1.5-9B-Chat",
       "claude-3-haiku-20240307", "command-r", "gemini-1.5-flash", "gemma-2-2b-it", "gpt-3.5-turbo-0125",
       "reka-flash-20240226")  # fmt: skip
MATH = ("Meta-Llama-3-8B-Instruct", "Phi-3.5-mini-instruct", "Qwen2.5-7B-Instruct", "Yi-1.5-9B-Chat",
        "claude-3-haiku-20240307", "deepseek-v2.5-0908", "gemini-1.5-flash", "gemma-2-9b-it", "gpt-4o-2024-08-06",
        "reka-core-20240501")  # fmt: skip
SOURCES = (
    Source("GSM8K, four models of 2021", "openai/grade-school-math", "3101c7d5072418e28b9008a6636bde82a006892c",
           ("grade_school_math/data/example_model_solutions.jsonl",), "auto", _grade_school),
    Source("GSM8K, Abel 7B, 13B, 70B", "GAIR-NLP/abel", "3a24ef24e9ea32708fe4fa4c36bf504a74b4bdf0",
           tuple(f"outputs/{data}/{size}.jsonl" for data in ("gsm8k", "gsm8k_robust") for size in ("7b", "13b", "70b")),
           "hash", _abel),
    Source("choices of MathGPT, Abel 70B", "GAIR-NLP/abel", "3a24ef24e9ea32708fe4fa4c36bf504a74b4bdf0",
           ("outputs/mathgpt/70b.jsonl",), "hash", _abel),
    Source("MATH, a Qwen2.5-Math model", "QwenLM/Qwen2.5-Math", "a45202bd16f1ec06f433442dc1152d0074773465",
           ("evaluation/data/eval_rm_maj_example/math_cot_100.jsonl",), "boxed", _qwen),
    Source("GSM8K with programs, ToRA 34B and 70B", "microsoft/ToRA", "213c1c995038c73fab10343814df7a42f990f026",
           tuple(f"src/outputs/llm-agents/tora-{size}-v1.0/gsm8k/test_tora_-1_seed0_t0.0_s0_e1319.jsonl"
                 for size in ("code-34b", "70b")), "boxed", _tora),
    Source("MATH in tags, Qwen2.5-Math-1.5B in training", "sandrewxu/cs336-assignment5-alignment",
           "3d073ed461e0953a841258b68940b9aaa9a74b5a",
           tuple(f"results/ei/ei_G4_eibatch128_sftepochs_{epochs}/train/iter_{n}.jsonl"
                 for epochs in (1, 3) for n in range(1, 6)), "tags", _graded),
    Source("GSM8K as JSON, ten models", "WildEval/ZeroEval", "8c1485edf12c6efb5f69135a562927c5ad484059",
           tuple(f"result_dirs/gsm/{model}.json" for model in GSM), "auto", _zero_eval),
    Source("MATH level 5 as JSON, ten models", "WildEval/ZeroEval", "8c1485edf12c6efb5f69135a562927c5ad484059",
           tuple(f"result_dirs/math-l5/{model}.json" for model in MATH), "auto", _zero_eval),
)  # fmt: skip


def verdicts(responses: Sequence[Response], extraction: Extraction) -> list[bool]:
    with Verifier(rule="sympy", extraction=extraction, workers=1) as verifier:
        scores = verifier.score([(RewardProblem(each.name, "", each.reference), each.text) for each in responses])
    return [score.correct for score in scores]


def counted(responses: Sequence[Response], found: Sequence[bool]) -> dict[str, Any]:
    """Agreement with labels, and the differences: those where a label is wrong, by reason, and the verifier's own."""
    why = {name: (who, reason) for who, reasons in REVIEWED.items() for reason, names in reasons.items() for name in names}
    different = [(each, verdict) for each, verdict in zip(responses, found, strict=True) if verdict != each.right]
    reviewed = Counter(" ".join(why[each.name]) for each, _ in different if each.name in why)
    own = [(each, verdict) for each, verdict in different if why.get(each.name, ("verifier",))[0] == "verifier"]
    return {
        "responses": len(responses),
        "right by their labels": sum(each.right for each in responses),
        "differences": len(different),
        "reviewed": dict(sorted(reviewed.items())),
        "false positives": [each.name for each, verdict in own if verdict],
        "false negatives": [each.name for each, verdict in own if not verdict],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the clones, each `owner+name`")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--show", action="store_true", help="print each difference that is not reviewed")
    arguments = parser.parse_args()
    rows = []
    for source in SOURCES:
        responses = [*source.read(arguments.folder)]
        row: dict[str, Any] = {"source": source.name, "repository": f"{source.repository}@{source.commit[:8]}"}
        for extraction in dict.fromkeys((source.form, "auto")):
            found = verdicts(responses, extraction)
            row[extraction] = counted(responses, found)
            if arguments.show:
                _show(responses, found, extraction)
        rows.append(row)
        print({key: value if isinstance(value, str) else {**value, "false positives": len(value["false positives"]), "false negatives": len(value["false negatives"])} for key, value in row.items()}, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _show(responses: Sequence[Response], found: Sequence[bool], extraction: Extraction) -> None:
    from math_answers import extract

    known = {name for reasons in REVIEWED.values() for names in reasons.values() for name in names}
    for each, verdict in zip(responses, found, strict=True):
        if verdict != each.right and each.name not in known:
            read = extract(each.text, extraction)
            print(f"{each.name} {extraction} label {each.right} read {read!r} reference {each.reference!r}\n   {each.text[-160:]!r}")


if __name__ == "__main__":
    main()
