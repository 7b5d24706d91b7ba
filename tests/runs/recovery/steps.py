"""What tests of recovery do again and again."""

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run, RunEvent
from tests.fakes import Hold, Round, numbered, say
from tests.runs.stage import open_stage
from tests.runs.waiting import terminal, until


def opening(alice, serve, tmp_path, release, **policy):
    """A stage whose agent has a policy."""
    return open_stage(alice, serve, tmp_path / "marks", release=release, policy=policy)


async def cut_in_answer(stage, answer="w1 w2 w3 w4 w5", name="cut"):
    """A turn whose answer has come this far and no further; its run."""
    count = len(answer.split())
    stage.script.add(Round(numbered(count), Hold(name), numbered(3)))
    run_id = await stage.start()
    await until(lambda: told(run_id) == answer, what="the partial answer")
    return run_id


def told(run_id):
    deltas = RunEvent.objects.filter(run=run_id, type="message.delta").order_by("seq")
    return "".join(data["text"] for data in deltas.values_list("data", flat=True))


async def interrupted(run_id):
    found = await terminal(run_id)
    assert found.status == "interrupted", found.status
    return found


async def snapshot(stage):
    return await in_thread(operations.session_snapshot, stage.owner, stage.session)


async def resumed(stage, run_id):
    """Resume the run; the new one, once it has ended."""
    return await terminal((await in_thread(operations.resume, stage.owner, run_id))["id"])


async def goes_on(stage, run_id, words="Here it is."):
    """The run is resumed, and completes with these words."""
    stage.script.clear()
    stage.script.add(say(words))
    ended = await resumed(stage, run_id)
    assert ended.status == "completed", ended.error_message


async def gone_on_with(run_id):
    """The run that resumes this one without anybody asking, once it is admitted."""
    return await until(Run.objects.filter(resumes=run_id).first, what="an automatic resume")
