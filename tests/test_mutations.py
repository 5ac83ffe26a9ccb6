"""The seeded faults of mutations.py still fit the code; `make test-mutations` runs the tests that must find them."""

import pytest
from faults_on_gpus import FAULTS_ON_GPUS
from mutations import FAULTS, ROOT


@pytest.mark.parametrize("fault", [*FAULTS, *FAULTS_ON_GPUS], ids=lambda fault: fault.name)
def test_the_text_of_a_seeded_fault_is_in_its_file_once(fault):
    assert (ROOT / "dapo_lit" / fault.file).read_text().count(fault.old) == 1
    assert all((ROOT / name.partition("::")[0]).is_file() for name in fault.tests if name.startswith("tests/"))
