"""What a run needs is looked at, named where it is missing, and told what to do about."""

import json
import socket
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import dapo_lit
from dapo_lit import doctor


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No network, no login and a working directory of its own."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)


def of(subject: str) -> doctor.Finding:
    (found,) = (one for one in doctor.findings() if one.subject == subject)
    return found


def test_a_machine_on_which_runs_work_passes_and_what_is_optional_has_a_remedy(capsys) -> None:
    assert doctor.main(["--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    Draft202012Validator(
        json.loads((Path(dapo_lit.__file__).with_name("schemas") / "doctor.json").read_text())
    ).validate(answer)
    assert answer["can_run"]
    found = [doctor.Finding(**row) for row in answer["findings"]]
    assert {one.subject for one in found} >= {"Python", "torch", "GPU", "vLLM", "machine", "runs", "model hub", "W&B"}
    assert [one.subject for one in found if (one.state == "good") == bool(one.remedy)] == []
    assert of("model hub").found == "huggingface.co does not answer (no network)"
    assert doctor.main([]) == 0
    shown = capsys.readouterr().out
    assert "this machine can work" in shown
    assert len(shown.splitlines()) >= len(found)


def test_a_library_that_does_not_import_is_named_and_the_exit_code_says_so(monkeypatch, capsys) -> None:
    real = doctor.import_module

    def broken(name: str):
        if name == "sympy":
            raise OSError("libgmp.so: cannot open shared object file")
        return real(name)

    monkeypatch.setattr(doctor, "import_module", broken)
    assert doctor.main(["json=true"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["can_run"]
    (found,) = [row for row in answer["findings"] if row["state"] == "missing"]
    assert found == {
        "subject": "sympy", "found": "does not import: OSError: libgmp.so: cannot open shared object file",
        "state": "missing", "remedy": "make install",
    }  # fmt: skip
    doctor.main([])
    assert "sympy: see what to do" in capsys.readouterr().out


def test_a_full_disk_and_one_that_cannot_be_written_are_told_apart(monkeypatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: doctor.shutil._ntuple_diskusage(2**40, 2**40, 10**8))
    assert of("runs").found.startswith("0.1 GB ")
    assert of("runs").state == "missing"
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert (of("runs").found, of("runs").remedy) == ("runs cannot be written", "another place: runs_dir=DIR")


def test_logins_offline_hubs_and_absent_packages_are_seen(monkeypatch, tmp_path) -> None:
    assert of("W&B").state == "optional"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password 0123")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert of("W&B").found == "login found"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in of("model hub").found

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    assert ["docs/vllm.md" in one.remedy for one in doctor.vllm()] == [True]
