"""Which tests are nearest to a file: for `make test-fast` and for drawn faults."""

import pytest
from drawn_faults import drawn, rooms
from nearest import ROOT, files_of_tests, imported, modules, nearest, nearest_to


def names(file: str) -> list[str]:
    return [str(test.relative_to(ROOT / "tests")) for test in nearest(ROOT / file)]


def test_the_file_named_after_a_module_comes_first_then_its_room_then_those_with_fewer_imports_in_between():
    found = names("dapo_lit/rollout/collect.py")
    own = [name for name in found if name.startswith("rollout/")]
    assert found[0] == "rollout/test_collect.py"
    assert found[: len(own)] == own
    assert found.index("lit/test_steps_ahead.py") < found.index("test_fork.py")  # imports it; by way of commands


@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("test_config.py", "dapo_lit.config.run"),  # handed on by the package
        ("test_wiring.py", "dapo_lit.build.components"),  # imported by a helper, tests/lit/small_runs.py
        ("test_train.py", "dapo_lit.train"),  # named as a command
        ("test_schema.py", "dapo_lit.schema"),  # a command of the tools, which has two names
    ],
)
def test_what_a_test_imports_is_found_through_packages_helpers_and_commands(test, module):
    assert module in imported(ROOT / "tests" / test)


def test_every_module_with_code_is_reached():
    unreached = [name for name, file in modules().items() if file.name != "__init__.py" and not nearest(file)]
    assert unreached == []


def test_a_config_a_page_of_the_package_a_helper_and_a_test_have_theirs():
    assert "config/test_identity.py" in names("conf/algorithm/dapo.yaml")
    assert names("ablations/report/page.js")[0].startswith("ablations/")
    assert {"lit/test_ranks.py", "lit/test_equivalence_matrix.py", "test_plan.py"} <= {
        *names("tests/lit/ranks_case.py")
    }
    assert names("tests/test_plan.py") == ["test_plan.py"]
    assert nearest_to([ROOT / "docs/studies.md"]) == []


def test_files_of_tests_take_turns():
    first, second = nearest_to([ROOT / "dapo_lit/step/batch.py", ROOT / "dapo_lit/seeds.py"])[:2]
    assert (first, second) == ("tests/step/test_batch.py", "tests/test_seeds.py")


def test_drawn_faults_are_in_every_room_before_a_room_has_a_second_one():
    found = [ROOT / "dapo_lit" / file for _, file, *_ in drawn(ROOT / "dapo_lit", len(rooms()), 1)]
    of_room = [{file.resolve() for file in found} & {*room} for room in rooms()]
    assert [len(files) for files in of_room] == [1] * len(rooms())
    assert all(tests for *_, tests in drawn(ROOT / "dapo_lit", len(rooms()), 1))
    assert {file.parts[-2] for file in found} >= {"switches", "policy", "evaluation", "environments"}
    assert len(files_of_tests()) > 100
