r"""The verifier's verdicts on responses that others published with labels: `python benchmarks/responses.py FOLDER`.

FOLDER has a clone of each repository in SOURCES, named `owner+name`; nothing of theirs is part of this one. A label is
the publisher's: that of its own scorer, or whether the answer that it took out of the response is the number of the
reference. Labels say which response is right, so none is counted where the publisher's scorer refused the form alone.

Each response is read in the form that its prompt asked for, and as a text of unknown origin (`auto`), and compared by
the rule `sympy`. What differs from the label was looked at one by one: `responses_reviewed.json` says whose difference
it is, and why. One that is not in there counts as the verifier's.

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
from math_answers import Extraction, extract

REVIEWED: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "responses_reviewed.json").read_text(encoding="utf-8")
)
"""Whose the difference is -> why -> names of responses: a wrong `label`; a `choice` of the rule `sympy`, which takes
values and not their form; the `verifier`, where the label is right."""
Fields = dict[str, Any]


@dataclass(frozen=True)
class Response:
    name: str
    """Key of the source, file, row and which of its responses."""
    text: str
    reference: str
    right: bool
    """The publisher's label."""


@dataclass(frozen=True)
class Source:
    """A published file or several, of one form of answers."""

    key: str
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
                    yield Response(f"{self.key}/{number}/{row}/{index}", text, reference, right)


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


GSM = (
    "Meta-Llama-3-8B-Instruct", "Mistral-Nemo-Instruct-2407", "Qwen2-7B-Instruct", "Yi-1.5-9B-Chat",
    "claude-3-haiku-20240307", "command-r", "gemini-1.5-flash", "gemma-2-2b-it", "gpt-3.5-turbo-0125",
    "reka-flash-20240226", "Athene-70B", "DeepSeek-Coder-V2-0724", "Llama-3.1-405B-Inst@sambanova",
    "Llama-3.1-405B-Instruct-Turbo", "Meta-Llama-3-70B-Instruct", "Meta-Llama-3.1-405B-Instruct@hyperbolic",
    "Meta-Llama-3.1-70B-Instruct", "Meta-Llama-3.1-8B-Instruct", "Mistral-Large-2", "Mixtral-8x7B-Instruct-v0.1",
    "Phi-3.5-mini-instruct", "Qwen2-72B-Instruct", "Yi-1.5-34B-Chat", "claude-3-5-haiku-20241022",
    "claude-3-5-sonnet-20240620", "claude-3-5-sonnet-20241022", "claude-3-opus-20240229", "claude-3-sonnet-20240229",
    "command-r-plus", "deepseek-chat", "deepseek-coder", "deepseek-v2.5-0908", "gemini-1.5-flash-exp-0827",
    "gemini-1.5-pro-exp-0801", "gemini-1.5-pro", "gemma-2-27b-it@together", "gemma-2-9b-it", "gpt-4o-2024-05-13",
    "gpt-4o-2024-08-06", "gpt-4o-mini-2024-07-18", "o1-mini-2024-09-12", "reka-core-20240501", "yi-large-preview",
    "yi-large",
)  # fmt: skip
"""Models whose files are there in full. The answers of the first ten were read while the forms were written."""
MATH = (
    "Meta-Llama-3-8B-Instruct", "Phi-3.5-mini-instruct", "Qwen2.5-7B-Instruct", "Yi-1.5-9B-Chat",
    "claude-3-haiku-20240307", "deepseek-v2.5-0908", "gemini-1.5-flash", "gemma-2-9b-it", "gpt-4o-2024-08-06",
    "reka-core-20240501", "Athene-70B", "Llama-3.1-405B-Inst@sambanova", "Meta-Llama-3-70B-Instruct",
    "Meta-Llama-3.1-405B-Instruct@hyperbolic", "Meta-Llama-3.1-70B-Instruct",
    "Meta-Llama-3.1-70B-Instruct@hyperbolic", "Meta-Llama-3.1-8B-Instruct", "Mistral-Large-2",
    "Phi-3-mini-4k-instruct", "Qwen2-72B-Instruct", "Qwen2-7B-Instruct", "Qwen2.5-32B-Instruct",
    "Qwen2.5-3B-Instruct", "Qwen2.5-72B-Instruct", "Yi-1.5-34B-Chat", "chatgpt-4o-latest-24-09-07",
    "claude-3-5-haiku-20241022", "claude-3-5-sonnet-20240620", "claude-3-5-sonnet-20241022",
    "claude-3-opus-20240229", "gemini-1.5-flash-exp-0827", "gemini-1.5-pro-exp-0827", "gemini-1.5-pro",
    "gemma-2-27b-it", "gemma-2-2b-it", "gpt-3.5-turbo-0125", "gpt-4-0314", "gpt-4-turbo-2024-04-09",
    "gpt-4o-2024-05-13", "gpt-4o-mini-2024-07-18", "grok-2-1212", "o1-mini-2024-09-12", "o1-preview-2024-09-12",
)  # fmt: skip
"""Likewise."""
SOURCES = (
    Source("openai", "GSM8K, four models of 2021", "openai/grade-school-math",
           "3101c7d5072418e28b9008a6636bde82a006892c",
           ("grade_school_math/data/example_model_solutions.jsonl",), "auto", _grade_school),
    Source("abel", "GSM8K, Abel 7B, 13B, 70B", "GAIR-NLP/abel", "3a24ef24e9ea32708fe4fa4c36bf504a74b4bdf0",
           tuple(f"outputs/{data}/{size}.jsonl" for data in ("gsm8k", "gsm8k_robust") for size in ("7b", "13b", "70b")),
           "hash", _abel),
    Source("choices", "choices of MathGPT, Abel 70B", "GAIR-NLP/abel", "3a24ef24e9ea32708fe4fa4c36bf504a74b4bdf0",
           ("outputs/mathgpt/70b.jsonl",), "hash", _abel),
    Source("qwen", "MATH, a Qwen2.5-Math model", "QwenLM/Qwen2.5-Math",
           "a45202bd16f1ec06f433442dc1152d0074773465",
           ("evaluation/data/eval_rm_maj_example/math_cot_100.jsonl",), "boxed", _qwen),
    Source("tora", "GSM8K with programs, ToRA 34B and 70B", "microsoft/ToRA",
           "213c1c995038c73fab10343814df7a42f990f026",
           tuple(f"src/outputs/llm-agents/tora-{size}-v1.0/gsm8k/test_tora_-1_seed0_t0.0_s0_e1319.jsonl"
                 for size in ("code-34b", "70b")), "boxed", _tora),
    Source("tags", "MATH in tags, Qwen2.5-Math-1.5B in training", "sandrewxu/cs336-assignment5-alignment",
           "3d073ed461e0953a841258b68940b9aaa9a74b5a",
           tuple(f"results/ei/ei_G4_eibatch128_sftepochs_{epochs}/train/iter_{n}.jsonl"
                 for epochs in (1, 3) for n in range(1, 6)), "tags", _graded),
    Source("gsm-json", "GSM8K as JSON, 44 models", "WildEval/ZeroEval",
           "8c1485edf12c6efb5f69135a562927c5ad484059",
           tuple(f"result_dirs/gsm/{model}.json" for model in GSM), "auto", _zero_eval),
    Source("math-json", "MATH level 5 as JSON, 43 models", "WildEval/ZeroEval",
           "8c1485edf12c6efb5f69135a562927c5ad484059",
           tuple(f"result_dirs/math-l5/{model}.json" for model in MATH), "auto", _zero_eval),
)  # fmt: skip


def verdicts(responses: Sequence[Response], extraction: Extraction) -> list[bool | None]:
    """None: nothing is written in the form."""
    with Verifier(rule="sympy", extraction=extraction, workers=1) as verifier:
        scores = verifier.score([(RewardProblem(each.name, "", each.reference), each.text) for each in responses])
    return [None if score.answer is None else score.correct for score in scores]


def counted(responses: Sequence[Response], found: Sequence[bool | None], extraction: Extraction) -> dict[str, Any]:
    """Agreement with labels, and the differences: those whose label is wrong, and the verifier's own, by reason."""
    why = {
        name: (who, reason) for who, reasons in REVIEWED.items() for reason, names in reasons.items() for name in names
    }
    different = [(each, verdict) for each, verdict in zip(responses, found, strict=True) if bool(verdict) != each.right]
    absent = [each.name for each, verdict in different if verdict is None and extraction != "auto"]
    judged = [(each, verdict) for each, verdict in different if each.name not in absent]
    whose = {each.name: why.get(each.name, ("verifier", "not reviewed")) for each, _ in judged}
    reasons = {who: Counter(reason for by, reason in whose.values() if by == who) for who in ("label", "choice")}
    own = {verdict: {each.name: whose[each.name][1] for each, said in judged if bool(said) is verdict}
           for verdict in (True, False)}  # fmt: skip
    return {
        "extraction": extraction,
        "responses": len(responses),
        "right": sum(each.right for each in responses),
        "not in the form": len(absent),
        "wrong labels": dict(sorted(reasons["label"].items())),
        "choices": dict(sorted(reasons["choice"].items())),
        "false positives": {name: why for name, why in own[True].items() if whose[name][0] == "verifier"},
        "false negatives": {name: why for name, why in own[False].items() if whose[name][0] == "verifier"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the clones, each `owner+name`")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--show", action="store_true", help="print each difference that was not reviewed")
    arguments = parser.parse_args()
    rows = []
    for source in SOURCES:
        responses = [*source.read(arguments.folder)]
        row: dict[str, Any] = {"source": source.name, "repository": f"{source.repository}@{source.commit[:8]}"}
        row["readings"] = []
        for extraction in dict.fromkeys((source.form, "auto")):
            found = verdicts(responses, extraction)
            row["readings"].append(counted(responses, found, extraction))
            _print(source, row["readings"][-1], responses if arguments.show else ())
        rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _print(source: Source, reading: Fields, shown: Sequence[Response]) -> None:
    numbers = {key: sum(value.values()) if key in ("wrong labels", "choices") else len(value)
               for key, value in reading.items() if isinstance(value, dict)}  # fmt: skip
    print(f"{source.name}, {reading['extraction']}: {reading['responses']} {numbers}", flush=True)
    unseen = {
        name
        for kind in ("false positives", "false negatives")
        for name, why in reading[kind].items()
        if why == "not reviewed"
    }
    for each in shown:
        if each.name in unseen:
            answer = extract(each.text, reading["extraction"])
            print(f"  {each.name} label {each.right} read {answer!r} reference {each.reference!r} {each.text[-160:]!r}")


if __name__ == "__main__":
    main()
