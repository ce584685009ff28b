import http.client
import json
import shutil
import socket
import threading

import pytest

from equipoise.report import ReportError
from equipoise.report.watch import HOST, server
from tests.report.folders import make_run


@pytest.fixture
def watched(tmp_path):
    run = make_run(tmp_path / "run", steps=6)
    serving = server(run)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield run, serving.server_address[1]
    serving.shutdown()
    serving.server_close()
    thread.join()


def get(port, path="/data.json", **headers):
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    return answer, answer.read().decode()


def steps(port):
    answer, body = get(port)
    assert answer.status == 200
    return json.loads(body)["runs"][0]["steps"]


def test_the_page_and_its_data_are_served(watched):
    _, port = watched
    answer, body = get(port, "/")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert 'data-mode="live"' in body
    assert "connect-src 'self'" in body
    assert steps(port) == [1, 2, 3, 4, 5, 6]
    assert get(port, "/config.toml")[0].status == 404
    assert get(port, "/../run/config.toml")[0].status == 404


def test_new_lines_show_up_and_torn_ones_wait(watched):
    run, port = watched
    with open(run / "metrics.jsonl", "a") as f:
        f.write('{"step": 7, "reward/')
        f.flush()
        assert steps(port)[-1] == 6
        f.write('mean": 0.5}\n')
        f.flush()
        assert steps(port)[-1] == 7


def test_truncation_removal_and_a_new_start_are_survived(watched):
    run, port = watched
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert steps(port) == [1]
    (run / "metrics.jsonl").write_text("")
    assert steps(port) == []
    shutil.rmtree(run)
    assert steps(port) == []
    make_run(run, steps=3)
    assert steps(port) == [1, 2, 3]


def test_what_has_not_changed_is_not_sent_again(watched):
    run, port = watched
    tag = get(port)[0].headers["ETag"]
    answer, body = get(port, If_None_Match=tag)
    assert (answer.status, body) == (304, "")
    with open(run / "metrics.jsonl", "a") as f:
        f.write('{"step": 7}\n')
    assert get(port, If_None_Match=tag)[0].status == 200


def test_only_requests_that_name_this_machine_are_answered(watched):
    _, port = watched
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1.evil.example:{port}",
        "",
        f"localhost:{port + 1}",
    ):
        answer, body = get(port, "/", Host=host)
        assert answer.status == 403, host
        assert "balanced" not in body
    assert get(port, Host=f"localhost:{port}")[0].status == 200
    assert "Access-Control-Allow-Origin" not in get(port)[0].headers


def test_it_listens_on_the_loopback_address_alone(watched):
    _, port = watched
    for address in ("127.0.0.2", *socket.gethostbyname_ex(socket.gethostname())[2]):
        if address != HOST:
            with socket.socket() as other:
                other.settimeout(2)
                assert other.connect_ex((address, port)) != 0, address


def test_only_reading_is_possible(watched):
    _, port = watched
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    connection.request("POST", "/", body="x")
    assert connection.getresponse().status == 501


def test_runs_that_appear_in_a_watched_folder_show_up(tmp_path):
    make_run(tmp_path / "a", steps=2)
    serving = server(tmp_path)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        make_run(tmp_path / "b", steps=2)
        names = [r["name"] for r in json.loads(get(serving.server_address[1])[1])["runs"]]
    finally:
        serving.shutdown()
        serving.server_close()
        thread.join()
    assert names == ["a", "b"]


def test_what_cannot_be_watched_is_a_sentence(tmp_path):
    with pytest.raises(ReportError, match="no such run directory"):
        server(tmp_path / "nowhere")
    run = make_run(tmp_path / "run", steps=1)
    with pytest.raises(ReportError, match="port 99999: cannot be listened on"):
        server(run, 99999)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ReportError, match=f"port {port}: cannot be listened on: .*; --port 0 takes a free one"):
            server(run, port)
