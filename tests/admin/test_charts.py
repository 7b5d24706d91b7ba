"""Charts: columns where their numbers are."""

from itertools import pairwise

import pytest

from runs.admin.dashboard.charts import Chart, Series, short


def chart(*values, **options):
    labels = [str(place) for place in range(len(values[0]))]
    return Chart(labels, [Series(f"s{number}", one) for number, one in enumerate(values)], **options)


def test_heights_are_in_proportion_to_the_numbers():
    drawn = chart([1, 2, 4])
    heights = [column.height for column in drawn.columns]
    assert heights == pytest.approx([heights[2] / 4, heights[2] / 2, heights[2]], abs=0.2)


def test_stacked_series_stand_on_top_of_each_other():
    below, above = chart([3], [5]).columns
    assert above.y + above.height == pytest.approx(below.y, abs=0.11)
    assert (below.x, below.width) == (above.x, above.width)


def test_series_that_are_not_stacked_stand_next_to_each_other():
    left, right = chart([3], [5], stacked=False).columns
    assert left.x + left.width == pytest.approx(right.x, abs=0.11)
    assert left.y + left.height == right.y + right.height


def test_columns_stay_within_the_picture_and_do_not_overlap():
    drawn = chart(list(range(1, 31)), list(range(30, 0, -1)))
    assert all(column.y >= 0 and column.y + column.height <= drawn.bottom + 0.1 for column in drawn.columns)
    assert all(drawn.left <= column.x and column.x + column.width <= drawn.right for column in drawn.columns)
    starts = sorted({column.x for column in drawn.columns})
    assert all(b - a > drawn.columns[0].width for a, b in pairwise(starts))


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 7, 9, 10, 11, 99, 101, 12_345, 10**9 + 1])
def test_the_axis_ends_at_a_round_number_that_nothing_exceeds(most):
    drawn = chart([most])
    assert drawn.top >= most
    assert 2 <= len(drawn.levels) <= 8
    assert drawn.levels[-1].at == min(level.at for level in drawn.levels)


def test_only_labels_that_have_room_are_shown_and_always_the_last_one():
    places = chart([1] * 30).places
    assert len(places) <= 10
    assert places[-1].text == "29"


def test_titles_name_place_series_and_number():
    assert [column.title for column in chart([1234]).columns] == ["0, s0: 1,234"]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1k"), (1_250_000, "1.25M"), (2 * 10**9, "2G")]
)
def test_numbers_at_the_axis_are_short(number, text):
    assert short(number) == text
