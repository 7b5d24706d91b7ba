"""Several processes, as ``make cluster`` runs them: whoever is asked or lost, it is one product."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count, cycle, pairwise

import httpx
import psutil
import psycopg
import pytest

from tests.fakes import Marks
from tests.polling import PATIENT, until
from tests.processes.cluster import Cluster, frames_until, frozen, socket_of, stream
from tests.provider import Hold, Round, call, numbered, provider_process, say, text

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ENDS = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")
HEARTBEAT = 1
numbers = count(1)


@pytest.fixture(scope="module")
def provider():
    with provider_process() as remote:
        yield remote


@pytest.fixture(scope="module")
def running(provider, tmp_path_factory):
    data = tmp_path_factory.mktemp("cluster") / "data"
    data.mkdir()
    cluster = Cluster(data, provider, RUNS_HEARTBEAT=str(HEARTBEAT))
    cluster.start()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(running):
    """The one cluster of this module, whole again whatever the test before has lost."""
    running.whole()
    yield running
    running.leave_webs()


@pytest.fixture
def key():
    """A word that marks the turn of a test to the provider, and names its gate there."""
    return f"turn-{next(numbers)}."


def begin(cluster, key, *rounds):
    """A new session, and in it a turn that has come to the gate of its key, its words so far in its log."""
    words = not rounds
    cluster.provider.add(*(rounds or (Round(numbered(5), Hold(key), text(" end")),)), marker=key)
    session = cluster.open_session()
    run = cluster.start_turn(session, f"Go {key}")
    until(lambda: cluster.provider.gate(key)["arrivals"], "the turn's arrival at its gate")
    if words:  # what the provider has sent is still on its way
        until(lambda: told(cluster, run).endswith("w5"), "the turn's words in its log")
    return session, run


def told(cluster, run):
    """The words of a turn that are in its log."""
    events = cluster.events(run)
    return "".join(event["data"]["text"] for event in events if event["type"] == "message.delta")


def check_next(cluster, session, key):
    """NEXT ok: the session takes another turn, and the provider its history."""
    cluster.provider.add(say("Fine again."), marker=f"next {key}")
    ended = cluster.ended(cluster.start_turn(session, f"next {key}"))
    assert ended["status"] == "completed", ended["error"]
    assert cluster.messages(session)[-1]["text"] == "Fine again."


def status_is(cluster, run, status):
    return until(lambda: (r := cluster.run(run))["status"] == status and r, f"{run} being {status}")


def test_the_address_leads_to_both_and_each_answer_names_its_own(cluster):
    names = {f"{psutil.os.uname().nodename}:{web.pid}" for web in cluster.webs()}
    assert len(names) == 2
    root = str(cluster.api.base_url).removesuffix("api/")
    for path in (
        "healthz",
        "login/",
        "static/admin/css/base.css",
        "api/nothing/",
        "ws/nothing/",
        "v1/models",
    ):
        assert {httpx.get(root + path, timeout=PATIENT).headers["X-Served-By"] for _ in range(2)} == names
    for web in cluster.webs():
        with socket_of(cluster.at(web), cluster.open_session()) as socket:
            assert socket.response.headers["X-Served-By"].endswith(f":{web.pid}")
    assert {one.pid for one in cluster.workers().values()}.isdisjoint(one.pid for one in cluster.webs())


def test_a_turn_that_was_started_at_one_is_followed_at_the_other(cluster, key):
    here, there = map(cluster.at, cluster.webs())
    cluster.provider.add(Round(numbered(5), Hold(key), text(" end")), marker=key)
    session = here.post("sessions/").json()["id"]
    run = here.post(f"sessions/{session}/runs/", json={"input": key}).raise_for_status().json()["id"]
    with socket_of(there, session) as socket, ThreadPoolExecutor(1) as threads:
        streamed = threads.submit(lambda: list(stream(there, run)))
        until(lambda: cluster.provider.gate(key)["arrivals"], "the arrival")
        cluster.provider.open(key)
        frames = frames_until(socket, lambda frame: frame.get("event", {}).get("type") == "run.completed")
        log = cluster.events(run)
        assert streamed.result(PATIENT) == log
    live = [frame["event"] for frame in frames if frame["type"] == "run.event"]
    assert live == log[-len(live) :], "each once and in order"
    assert here.get(f"sessions/{session}/history/").json()["messages"][-1]["text"] == "w1 w2 w3 w4 w5 end"


def test_a_job_tells_of_a_turn_and_is_gone_once_it_was_taken(cluster, key):
    with psycopg.connect(cluster.webs()[0].environ()["DATABASE_URL"], autocommit=True) as database:
        database.execute('LISTEN "procrastinate_queue_v1#turns"')
        begin(cluster, key)
        (note,) = database.notifies(timeout=PATIENT, stop_after=1)
        assert json.loads(note.payload)["type"] == "job_inserted"

        def is_empty():
            return database.execute("SELECT count(*) FROM procrastinate_jobs").fetchone() == (0,)

        until(is_empty, "the end of the jobs, though the turn goes on")
    cluster.provider.open(key)


def test_a_job_that_nobody_works_on_any_more_is_forgotten(cluster, key):
    """Of a worker that was killed, and of one that lives and could not write that it had done it."""

    def in_hand(worker, session, begun):
        with database.transaction():
            job = database.execute(
                "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, worker_id) VALUES"
                " ('turns', 'runs.take', jsonb_build_object('session', %s::text), 'doing', %s) RETURNING id",
                (session, worker),
            ).fetchone()[0]
            database.execute(
                "INSERT INTO procrastinate_events (job_id, type, at) VALUES (%s, 'started', now() - %s)",
                (job, timedelta(seconds=begun)),
            )
        return job

    idle, (session, run) = cluster.open_session(), begin(cluster, key)
    queued = cluster.start_turn(session, "and then", multitask="enqueue")
    with psycopg.connect(cluster.webs()[0].environ()["DATABASE_URL"], autocommit=True) as database:
        lost = database.execute(
            "INSERT INTO procrastinate_workers (last_heartbeat)"
            " VALUES (now() - interval '1 hour') RETURNING id"
        ).fetchone()[0]
        living = database.execute(
            "SELECT id FROM procrastinate_workers ORDER BY last_heartbeat DESC LIMIT 1"
        ).fetchone()[0]
        held = in_hand(living, session, begun=3600)  # for want of room; its session has something to claim
        for worker, begun in ((lost, 0), (None, 0), (living, 3600)):
            in_hand(worker, idle, begun)
        fresh = in_hand(living, idle, begun=-3600)

        def left():
            return {
                job for (job,) in database.execute("SELECT id FROM procrastinate_jobs WHERE status = 'doing'")
            }

        until(lambda: left() == {held, fresh}, "the end of the three that are lost")
        database.execute("DELETE FROM procrastinate_jobs WHERE id = ANY(%s)", ([held, fresh],))
        database.execute("DELETE FROM procrastinate_workers WHERE id = %s", (lost,))
    cluster.post(f"runs/{queued}/cancel/")
    cluster.provider.open(key)
    assert cluster.ended(run)["status"] == "completed"


def test_ten_stops_at_two_processes_are_one_operation(cluster, key):
    clients = list(map(cluster.at, cluster.webs()))
    # It heeds nothing and ends after the test only, so that the cancel is pending for as long as its grace.
    cluster.provider.add(call("held_sync", mark=f"go {key}"), marker=key)
    session = cluster.open_session()
    run = cluster.start_turn(session, key)
    until(lambda: any(e["type"] == "tool.started" for e in cluster.events(run)), "the tool")
    with socket_of(clients[1], session) as socket, ThreadPoolExecutor(10) as threads:
        asked = [
            threads.submit(client.post, f"runs/{run}/cancel/", json={"wait": 20})
            for client, _ in zip(cycle(clients), range(10), strict=False)
        ]
        frames = frames_until(socket, lambda f: f["type"] == "session.cancellation_changed")
        assert (frames[-1]["cancellation_pending"], frames[-1]["cancellation_revision"]) == (True, 1)
        shown = [client.get(f"sessions/{session}/").json()["cancellation_pending"] for client in clients]
        settled = [answer.result(PATIENT).json() for answer in asked]
    assert shown == [True, True]
    assert len({one["id"] for one in settled}) == 1
    assert {one["outcome"] for one in settled} == {"cancelled"}
    assert [event["type"] for event in cluster.events(run)].count("run.cancelled") == 1
    for client in clients:
        seen = client.get(f"sessions/{session}/").json()
        assert (seen["cancellation_pending"], seen["cancellation_revision"]) == (False, 2)
    check_next(cluster, session, key)
    Marks(cluster.marks).write(f"go {key}")


def test_a_stop_at_any_process_closes_the_stream_at_the_provider(cluster, key):
    session, run = begin(cluster, key)
    for client in map(cluster.at, cluster.webs()):
        client.post(f"sessions/{session}/cancel/").raise_for_status()

    def closed():
        calls = cluster.provider.ledger()["calls"]
        mine = [one for one in calls if key in json.dumps(one["messages"])]
        return [one["outcome"] for one in mine] == ["closed"]

    until(closed, "the provider's seeing the stream closed")
    assert cluster.ended(run)["status"] == "cancelled"
    assert cluster.messages(session)[-1]["text"].startswith("w1 w2 w3 w4 w5")
    check_next(cluster, session, key)


def test_a_burst_at_two_processes_is_one_turn_after_the_other(cluster, key):
    cluster.provider.add(say("One at a time.", delay=0.05), marker=key, forever=True)
    clients = list(map(cluster.at, cluster.webs()))
    session = cluster.open_session()
    with ThreadPoolExecutor(12) as threads:
        posted = [
            threads.submit(
                client.post,
                f"sessions/{session}/runs/",
                json={"input": f"{key} {n}", "multitask": "enqueue"},
                headers={"Idempotency-Key": f"{key} {n}"},
            )
            for n in range(6)
            for client in clients  # each of them at both, in the same moment
        ]
        runs = {answer.result(PATIENT).raise_for_status().json()["id"] for answer in posted}
    assert len(runs) == 6
    ended = sorted((cluster.ended(run) for run in runs), key=lambda run: run["position"])
    assert {run["status"] for run in ended} == {"completed"}
    for earlier, later in pairwise(ended):
        assert later["started_at"] >= earlier["finished_at"]
    assert [m["role"] for m in cluster.messages(session)] == ["user", "assistant"] * 6


def test_a_question_is_answered_at_the_other_process(cluster, key):
    here, there = map(cluster.at, cluster.webs())
    cluster.provider.add(call("ask", question="Really?"), say("So be it."), marker=key)
    session = cluster.open_session()
    run = here.post(f"sessions/{session}/runs/", json={"input": key}).json()["id"]
    status_is(cluster, run, "waiting")
    asked = next(event for event in cluster.events(run) if event["type"] == "run.waiting")
    answers = {question["id"]: "Yes" for question in asked["data"]["questions"]}
    there.post(f"runs/{run}/answer/", json={"answers": answers}).raise_for_status()
    assert cluster.ended(run)["status"] == "completed"


def test_a_session_is_deleted_at_one_process_while_it_works_in_another(cluster, key):
    session, run = begin(cluster, key)
    worker = cluster.worker_of(run)
    with socket_of(cluster.at(cluster.webs()[0]), session) as socket:
        cluster.at(cluster.webs()[1]).delete(f"sessions/{session}/").raise_for_status()
        frames_until(socket, lambda frame: frame["type"] == "session.deleted")
    assert cluster.api.get(f"runs/{run}/").status_code == 404
    rows = cluster.get("workers/")["results"]
    assert worker.pid in {row["pid"] for row in rows}, "the worker goes on"
    until(lambda: all(row["active_runs"] == 0 for row in cluster.get("workers/")["results"]), "the run's end")


def test_a_killed_worker_is_noticed_at_once_and_another_goes_on(cluster, key):
    session, run = begin(cluster, key)
    began = time.monotonic()
    killed = cluster.worker_of(run)
    killed.kill()
    status_is(cluster, run, "interrupted")
    assert time.monotonic() - began < 4 * HEARTBEAT + 5, "not only by its heartbeat"
    assert cluster.session(session)["status"] == "interrupted"
    cluster.provider.add(say("Gone on with."), marker=key)
    resumed = cluster.post(f"runs/{run}/resume/")["id"]
    assert cluster.ended(resumed)["status"] == "completed"
    assert cluster.worker_of(resumed).pid != killed.pid
    said = [(m["role"], m["text"]) for m in cluster.messages(session)]
    assert said == [("user", f"Go {key}"), ("assistant", "Gone on with.")]


def test_a_revived_zombie_changes_nothing(cluster, key):
    session, run = begin(cluster, key)
    worker = cluster.worker_of(run)
    with frozen(worker):
        status_is(cluster, run, "interrupted")
        before = cluster.run(run), cluster.events(run), cluster.messages(session)
        cluster.provider.open(key)  # the rest of its answer waits in its socket
        rows = cluster.get("workers/")["results"]
        assert worker.pid not in {row["pid"] for row in rows}
    cluster.whole()  # it has signed on anew, after it looked at its runs
    until(lambda: all(row["active_runs"] == 0 for row in cluster.get("workers/")["results"]), "its giving up")
    assert (cluster.run(run), cluster.events(run), cluster.messages(session)) == before
    assert worker.is_running(), "it goes on as a worker"
    check_next(cluster, session, key)


def test_a_worker_that_is_told_to_leave_hands_over_what_is_safe(cluster, key):
    answer = Round(numbered(5), Hold(key), text(" end"))
    session, run = begin(cluster, key, call("mark", x=key), answer, answer)
    worker = cluster.worker_of(run)
    with socket_of(cluster.at(cluster.webs()[0]), session) as socket:
        worker.terminate()
        until(lambda: cluster.provider.gate(key)["arrivals"] == 2, "the other worker's turn")
        cluster.provider.open(key)
        frames = frames_until(socket, lambda frame: frame.get("event", {}).get("type") == "run.completed")
    assert worker.wait(PATIENT) in (0, None)
    first, second = cluster.get(f"sessions/{session}/runs/")["results"][::-1]
    assert (first["id"], first["status"], first["resolution"]) == (run, "interrupted", "resumed")
    assert (second["resumes"], second["status"]) == (run, "completed")
    ends = [f["event"] for f in frames if f["type"] == "run.event" and f["event"]["type"] in ENDS]
    assert [(end["type"], end["data"].get("reason")) for end in ends] == [
        ("run.interrupted", "shutdown"),
        ("run.completed", None),
    ]
    said = [(m["role"], m["text"]) for m in cluster.messages(session) if m["text"]]
    assert said == [("user", f"Go {key}"), ("assistant", "w1 w2 w3 w4 w5 end")]
    assert cluster.marks.read_text().splitlines().count(key) == 1, "a tool that had finished is not run again"


def test_what_is_not_safe_is_left_to_its_user(cluster, key):
    cluster.provider.add(call("hang"), marker=key)  # it never ends
    session = cluster.open_session()
    run = cluster.start_turn(session, key)
    until(lambda: any(e["type"] == "tool.started" for e in cluster.events(run)), "the tool")
    worker = cluster.worker_of(run)
    worker.terminate()
    assert worker.wait(PATIENT) in (0, None), "gone by RUNS_DRAIN_TIMEOUT, stuck thread or not"
    assert status_is(cluster, run, "interrupted")["resolution"] is None
    assert cluster.session(session)["status"] == "interrupted"
    assert cluster.messages(session)[-1]["tool_calls"][0]["effect"] == "unknown"
    assert len(cluster.get(f"sessions/{session}/runs/")["results"]) == 1


def test_a_client_of_a_killed_web_process_goes_on_at_the_other(cluster, key):
    _, run = begin(cluster, key)
    here, there = cluster.webs()
    seen, cut = [], threading.Event()

    def follow():
        for event in stream(cluster.at(here), run):
            seen.append(event)
            if event["type"] == "message.delta":
                cut.set()

    reader = threading.Thread(target=follow)
    reader.start()
    assert cut.wait(PATIENT)
    here.kill()
    reader.join(PATIENT)
    assert not reader.is_alive()
    cluster.provider.open(key)
    seen += stream(cluster.at(there), run, after=seen[-1]["seq"])
    assert seen == cluster.events(run)
    assert seen[-1]["type"] == "run.completed"


def test_without_redis_turns_run_and_cancels_arrive(cluster, key):
    """What is told over Redis is found without it, too."""
    held, held_run = begin(cluster, f"held-{key}")
    client = cluster.at(cluster.webs()[0])
    (redis,) = cluster.doing("redis-server")
    with frozen(redis):
        client.post(f"sessions/{held}/cancel/").raise_for_status()
        until(lambda: client.get(f"runs/{held_run}/").json()["status"] == "cancelled", "the cancel")
    redis.kill()
    cluster.provider.add(say("Without Redis."), marker=key)
    session = client.post("sessions/").raise_for_status().json()["id"]
    run = client.post(f"sessions/{session}/runs/", json={"input": key}).raise_for_status().json()["id"]
    assert [event["type"] for event in stream(client, run)][-1] == "run.completed"
    until(lambda: cluster.doing("redis-server"), "Redis, started again")
    check_next(cluster, session, key)


def test_when_postgresql_is_killed_in_mid_turn_everybody_is_still_there(cluster, key):
    before = {one.pid for one in (*cluster.webs(), *cluster.workers().values())}
    session, run = begin(cluster, key)
    seen = []
    with ThreadPoolExecutor(1) as threads:
        client = cluster.at(cluster.webs()[0])
        followed = threads.submit(lambda: seen.extend(stream(client, run)))
        until(lambda: any(e["type"] == "message.delta" for e in cluster.events(run)), "the beginning")
        (postgresql,) = cluster.doing("postgres")
        postgresql.kill()
        psutil.wait_procs([postgresql], PATIENT)
        cluster.provider.open(key)  # what it says now has to wait
        until(lambda: cluster.doing("postgres"), "PostgreSQL, started again")
        cluster.whole()
        cluster.ended(run)  # how, depends on how long it takes to start PostgreSQL here
        followed.result(PATIENT)
    seen += stream(client, run, after=seen[-1]["seq"])
    assert seen == cluster.events(run)
    check_next(cluster, session, key)
    assert {one.pid for one in (*cluster.webs(), *cluster.workers().values())} == before


def test_a_server_that_would_execute_turns_beside_the_workers_is_refused(cluster):
    (web, _) = cluster.webs()
    shared = {name: web.environ()[name] for name in ("DATABASE_URL", "REDIS_URL")}
    refused = cluster.command("serve", "--port", "0", DISPATCH="inprocess", **shared)
    assert refused.returncode == 1
    assert "already executes turns on this database, and with DISPATCH=inprocess" in refused.stderr
    refused = cluster.command("work", DISPATCH="inprocess", **shared)
    assert refused.returncode == 1
    assert "DISPATCH is inprocess" in refused.stderr


def test_a_second_cluster_on_the_same_data_is_refused(cluster):
    refused = cluster.command("cluster")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        f"CommandError: Process {cluster.process.pid} already runs a cluster on {cluster.data}. "
        "Stop it, or set another DATA_DIR.\n"
    )


def test_after_kill_9_nothing_is_left_and_the_next_start_has_it_all(cluster, key):
    session, run = begin(cluster, key)
    token, processes = cluster.api.headers["Authorization"], cluster.processes()
    assert len(processes) > 6
    cluster.kill()
    assert psutil.wait_procs(processes, 10)[1] == []

    cluster.start()
    assert cluster.api.headers["Authorization"] == token
    assert status_is(cluster, run, "interrupted")["resolution"] is None
    check_next(cluster, session, key)

    code, seconds = cluster.leave()
    assert (code, cluster.left) == (0, [])
    assert seconds < 5 + 15
