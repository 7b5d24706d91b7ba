"""The benchmark itself: that it runs, and that what it says is a measurement. No speed is asserted."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from runs.foundation import tasks, values
from tests import ROOT
from tests.benchmarks import hops, report
from tests.benchmarks.figures import Batch, Figure, Turn, compared, percentile
from tests.benchmarks.measures import MEASURES, QUICK
from tests.benchmarks.processes import cpu_seconds


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the quick mode writes as JSON and prints."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    environment = {**os.environ, "BENCH_JSON": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--quick"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text()), done.stdout


def figures_of(told, measure):
    return {figure["name"]: figure for figure in told[0]["figures"] if figure["measure"] == measure}


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestQuickMode:
    def test_every_measure_gives_figures_that_are_in_the_table_too(self, told):
        written, table = told
        assert [*dict.fromkeys(figure["measure"] for figure in written["figures"])] == list(MEASURES)
        assert written["quick"] is True
        for figure in written["figures"]:
            assert figure["name"] in table

    def test_the_first_token_comes_later_than_asked_and_the_product_adds_to_it(self, told):
        median = figures_of(told, "first_token")["median"]
        assert median["raw"] > 0
        assert median["product"] > 0

    def test_both_sides_have_a_speed_and_the_ratio_is_that_of_the_two(self, told):
        for measure in ("throughput", "http"):
            speeds = [f for f in figures_of(told, measure).values() if f["unit"] == "tokens/s"]
            assert speeds
            for figure in speeds:
                assert figure["product"] > 0
                assert figure["ratio"] == pytest.approx(figure["product"] / figure["raw"])

    def test_rows_are_shared_by_tokens_and_are_never_more_than_one_per_token(self, told):
        rows = figures_of(told, "throughput")[f"text rows, {QUICK.runs} runs"]
        assert 0 < rows["product"] <= 1

    def test_no_run_is_faster_than_the_pace_it_is_given(self, told):
        figures = figures_of(told, "pace")
        kept = figures[f"{QUICK.runs} runs at {QUICK.rate} tokens/s: pace kept"]
        assert 0 < kept["raw"] <= 1
        assert 0 < kept["product"] <= 1
        assert figures["median from due to arrival"]["product"] > 0

    def test_turns_with_tools_are_timed_with_and_without_the_gate(self, told):
        figures = figures_of(told, "tools")
        for how in ("in a row", "together"):
            name = f"{QUICK.calls} calls {how}"
            assert figures[name]["ratio"] > 0
            assert figures[f"{name}, without the gate"]["ratio"] > 0
            assert figures[f"the gate, {how}"]["product"] is not None

    def test_a_stop_reaches_the_provider_after_it_was_sent(self, told):
        for measure, number in (("stop", 4), ("stop_across", 2)):
            figures = figures_of(told, measure)
            assert len(figures) == number
            assert all(0 < figure["product"] < 10_000 for figure in figures.values())

    def test_a_growing_session_is_timed_and_weighed(self, told):
        figures = figures_of(told, "growth")
        assert figures[f"turn {QUICK.turns[-1]}"]["product"] > 0
        assert figures[f"checkpoints after {QUICK.turns[-1]} turns"]["product"] > 0


def test_a_ratio_is_the_median_of_the_rounds_and_the_spread_is_told():
    figure = compared("m", "n", "tokens/s", [(100, 50), (200, 160), (10, 9)], at_least=0.75)
    assert figure.ratio == pytest.approx(0.8)
    assert figure.ratios == pytest.approx((0.5, 0.9))
    assert figure.met is True
    assert compared("m", "n", "tokens/s", [(100, 50)], at_least=0.75).met is False


def test_a_batch_lasts_from_its_first_start_to_its_last_end():
    batch = Batch([Turn(1, 2, 4, tokens=30), Turn(2, 3, 7, tokens=30)], cpu=0.003)
    assert batch.tokens_per_second == 10
    assert batch.cpu_per_token == pytest.approx(50)


def test_percentiles_are_values_that_so_many_do_not_exceed():
    assert percentile(list(range(101)), 50) == 50
    assert percentile(list(range(101)), 95) == 95
    assert percentile([7], 95) == 7


def test_the_cpu_time_of_a_process_grows_with_what_it_does():
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.05:
        sum(range(10_000))
    assert cpu_seconds(os.getpid()) > before


def test_the_table_tells_ratio_spread_and_whether_an_aim_was_missed():
    figure = compared("throughput", "50 runs", "tokens/s", [(1000, 500), (1000, 700)], at_least=0.75)
    lines = report.table([figure, Figure("stop", "median", "ms", product=3.5)], report.machine()).splitlines()
    assert "CPUs" in lines[0]
    assert "0.60 (0.50 to 0.70)" in lines[4]
    assert "missed" in lines[4]
    assert "3.5" in lines[5]
    assert "missed" not in lines[5]


async def test_hops_are_functions_of_ours_and_one_that_waits_is_called_once():
    recorder = hops.Recorder()
    recorder.start()
    sys.setprofile(recorder.profile)
    try:
        values.clean("text")
        await tasks.end([asyncio.create_task(asyncio.sleep(60)) for _ in range(2)])
    finally:
        sys.setprofile(None)
    counted = recorder.stop()
    assert {name.split()[1]: number for name, number in counted.items()} == {"clean": 1, "end": 1}
    assert hops.every_time([{"a": 1, "b": 2}, {"a": 3}, {"a": 2}]) == {"a": 1}
