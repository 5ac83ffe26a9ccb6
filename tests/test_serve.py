"""The page that a run is served as: what it shows and starts, and all that it refuses."""

import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ablations.files.layout import playable_page
from ablations.techniques import REGISTER
from dapo_lit import serve
from dapo_lit.config.shipped import studies
from dapo_lit.serve import FROM_A_FOLDER, OWN, Job, LivePage

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a run with a kept state looks like from outside; a file next to it that nobody may see."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "dapo" / "dapo" / "seed_0"
    (run / "replay").mkdir(parents=True)
    (run / "replay" / "step_000004.ckpt").touch()
    (run / "run.json").write_text("{}")
    switches = dict.fromkeys(REGISTER, True) | {"overlong_filtering": False}
    (run / "config.yaml").write_text(yaml.safe_dump({"algorithm": {"techniques": switches}, "budget": {"steps": 6}}))
    (tmp_path / "secret.txt").write_text("0xSECRET")
    return run


class Client:
    def __init__(self, page: LivePage, port: int) -> None:
        self.page, self.port = page, port

    def __call__(
        self, path: str, method: str = "GET", host: str | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        return answer


@pytest.fixture
def ask(folder: Path) -> Iterator[Client]:
    page = LivePage(Path("runs/dapo/dapo/seed_0"), TOKEN)
    bound = serve.server(page)
    threading.Thread(target=bound.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield Client(page, bound.server_address[1])
    bound.shutdown()
    bound.server_close()
    if page.job is not None:
        page.job.stop()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that were started, none of which runs."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(Job, "start", lambda job: found.append(job.arguments))
    return found


def test_it_listens_on_this_machine_only(folder):
    bound = serve.server(LivePage(folder, TOKEN))
    assert bound.server_address[0] == "127.0.0.1"
    bound.server_close()


def test_the_token_is_new_each_time_and_long(folder, monkeypatch, capsys):
    class Ended:
        server_address = ("127.0.0.1", 1)

        def serve_forever(self) -> None:
            raise KeyboardInterrupt

        def server_close(self) -> None:
            pass

    monkeypatch.setattr(serve, "server", lambda page, port: Ended())
    tokens = set()
    for _ in range(2):
        assert serve.main([str(folder)]) == 0
        tokens.add(capsys.readouterr().out.split("/")[3])
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 43  # 256 bits


@pytest.mark.parametrize(
    "path",
    ["/", "", "/index.html", f"/{TOKEN}", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "//", f"/{TOKEN.upper()}/", "/favicon.ico",
     f"/x/{TOKEN}/"],
)  # fmt: skip
def test_without_the_token_nothing_is_there(ask, started, path):
    for method in ("GET", "POST"):
        answer = ask(path, method)
        assert answer.status in (404, 400)
        assert TOKEN not in answer.text
        assert "seed_0" not in answer.text
    assert started == []


@pytest.mark.parametrize(
    "place",
    ["../../../secret.txt", "..%2f..%2f..%2fsecret.txt", "%2e%2e/%2e%2e/secret.txt", "....//secret.txt", "/etc/passwd",
     "replay/../../../../../secret.txt", "replay/step_000004.html/../../../../../../secret.txt", "run.html/../run.json",
     "run.json", "config.yaml", "replay/step_000004.ckpt", "replay/step_000005.html", "replay/step_000004.html%00.txt",
     "fork/4/clip_higher/..", "fork/4/../../x", "fork/5/clip_higher", "make/4;id", "fork/4/$(id)",
     "run.html?file=/etc/passwd",
     "C:\\\\secret.txt", "file:///etc/passwd"],
)  # fmt: skip
def test_no_part_of_an_address_becomes_a_path_or_a_command(ask, started, place):
    for method in ("GET", "POST"):
        answer = ask(f"/{TOKEN}/{place}", method)
        assert answer.status in (404, 400), place
        assert "0xSECRET" not in answer.text
        assert "root:" not in answer.text
    assert started == []


def test_only_the_name_of_this_machine_is_answered(ask, started):
    for host in ("evil.example", f"evil.example:{ask.port}", "127.0.0.1", f"127.0.0.1.evil.example:{ask.port}", "x",
                 f"[::1]:{ask.port}", f"127.0.0.1:{ask.port + 1}"):  # fmt: skip
        for method in ("GET", "POST"):
            answer = ask(f"/{TOKEN}/make/4", method, host)
            assert answer.status == 403, host
    assert ask(f"/{TOKEN}/", host=f"localhost:{ask.port}").status == 200
    # No Host at all, as HTTP/1.0 allows.
    with socket.create_connection(("127.0.0.1", ask.port), timeout=20) as raw:
        raw.sendall(f"GET /{TOKEN}/ HTTP/1.0\r\n\r\n".encode())
        assert b" 403 " in raw.recv(200)
    assert started == []


def test_other_methods_are_refused_and_no_other_site_is_let_in(ask, started):
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "HEAD", "TRACE", "CONNECT", "FOO"):
        assert ask(f"/{TOKEN}/make/4", method).status == 405, method
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{ask.port}", f"http://localhost:{ask.port}"):
        assert ask(f"/{TOKEN}/make/4", "POST", Origin=origin).status == 403, origin
    for place in ("", "run", "make/4"):
        answer = ask(f"/{TOKEN}/{place}", Origin="http://evil.example")
        assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control-")]
        assert answer.getheader("X-Frame-Options") == "DENY"
    assert started == []


def test_a_click_starts_the_command_of_its_button_and_one_at_a_time(ask, monkeypatch):
    index = ask(f"/{TOKEN}/").text
    assert index.count("<form ") == 1 + len(REGISTER)
    actions = re.findall(r'<form method="post" action="([^"]+)">', index)
    assert set(actions) == set(ask.page.actions())
    assert ask(f"/{TOKEN}/make/4").status == 404  # looking at an address starts nothing
    replay = ("dapo_lit.replay", "runs/dapo/dapo/seed_0", "step=4", "--html")
    assert ask.page.actions()["make/4"] == replay
    fork = ask.page.actions()["fork/4/clip_higher"]
    assert "'study.arms=[dapo-clip_higher]'".strip("'") in fork
    # Steps 4 to 6 are left of the run.
    assert {"fork.run=runs/dapo/dapo/seed_0", "fork.steps=[4]", "fork.horizon=3"} <= set(fork)
    assert studies()["fork"]["fork"]["horizon"] == serve.HORIZON
    assert any("dapo+overlong_filtering" in part for part in ask.page.actions()["fork/4/overlong_filtering"])
    # A command that lasts, and says something that is no markup.
    script = "import time; print('<b>\\x1b[31mred', flush=True); time.sleep(60)"
    monkeypatch.setattr(LivePage, "actions", lambda page: {"make/4": ("timeit", "-n1", "-r1", script)})
    answer = ask(f"/{TOKEN}/make/4", "POST", Origin=f"http://127.0.0.1:{ask.port}")
    assert (answer.status, answer.getheader("Location")) == (303, f"/{TOKEN}/job")
    assert ask(f"/{TOKEN}/make/4", "POST").status == 409
    for _ in range(200):
        if "red" in (shown := ask(f"/{TOKEN}/job").text.partition("<pre>")[2]):
            break
        time.sleep(0.05)
    assert "&lt;b&gt;red" in shown
    process = ask.page.job.process
    ask.page.job.stop()
    assert process.poll() is not None


def test_pages_of_the_folder_get_an_origin_of_their_own_and_ours_run_no_script(ask, folder):
    answer = ask(f"/{TOKEN}/")
    assert answer.getheader("Content-Security-Policy") == OWN
    assert "script-src" not in OWN
    missing = ask(f"/{TOKEN}/replay/step_000004.html")
    assert 'action="../make/4"' in missing.text
    # It may begin as a page of ours does: where a page comes from decides, not what it holds.
    start = ask(f"/{TOKEN}/").text[:300]
    playable_page(folder, 4).write_text(f"{start}<form method=post action=../make/4><button>Continue</button></form>")
    answer = ask(f"/{TOKEN}/replay/step_000004.html")
    assert answer.getheader("Content-Security-Policy") == FROM_A_FOLDER
    assert FROM_A_FOLDER.startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in FROM_A_FOLDER
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    index = ask(f"/{TOKEN}/").text
    assert all(f'href="replay/step_000004.html#{switch}"' in index for switch in REGISTER)


def test_what_the_runs_own_fork_says_is_shown(ask, folder):
    assert "what the fork says" not in ask(f"/{TOKEN}/").text
    assert 'action="../../fork/4/clip_higher"' in ask(f"/{TOKEN}/fork/4/clip_higher").text
    report = folder.parents[2] / "fork_clip_higher" / "dapo_dapo_seed_0" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("<!doctype html>\n<p>clip-higher: +1.0 points")
    assert ask(f"/{TOKEN}/").text.count("what the fork says") == 1
    assert "+1.0 points" in ask(f"/{TOKEN}/fork/4/clip_higher").text


def test_the_report_of_a_fork_is_where_its_command_writes_it(ask, folder):
    """The folder of the states, as `continued` names it."""
    from dapo_lit.cli import fork

    source = Path(fork.__file__).read_text()
    assert "'_'.join(run.resolve().parts[-3:])" in source
    assert ask.page._fork_report("clip_higher") == Path("runs/fork_clip_higher/dapo_dapo_seed_0/report.html")
    assert "study_name=fork_clip_higher" in ask.page.actions()["fork/4/clip_higher"]


@pytest.mark.parametrize("arguments", [["nowhere"], ["runs/dapo/dapo/seed_0", "port=99999"]])
def test_what_cannot_be_served_is_one_line(folder, capsys, arguments):
    assert serve.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
