"""Which of a run's records are drawn, and how many of their points."""

from pd_eqx.report.curves import MAX_POINTS, MAX_SERIES, panels


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    records = [{"step": step, "loss/total": 1.0 / step} for step in range(1, 5001)]
    (panel,) = panels(records)
    (series,) = panel.series
    assert len(series.steps) == MAX_POINTS
    assert (series.steps[0], series.steps[-1]) == (1, 5000)
    assert all(value == 1.0 / step for step, value in zip(series.steps, series.values, strict=True))


def test_a_total_comes_first_and_what_is_left_out_is_counted() -> None:
    names = [f"eval/alive/site{i}" for i in range(20)] + ["eval/alive/total"]
    (panel,) = panels([{"step": 1, **dict.fromkeys(names, 3.0)}])
    assert panel.series[0].name == "total"
    assert len(panel.series) == MAX_SERIES + 1
    assert panel.left_out == 21 - (MAX_SERIES + 1)


def test_a_metric_that_only_some_records_have_is_drawn_where_it_is() -> None:
    records = [{"step": 1, "loss/a": 1.0}, {"step": 2, "loss/a": 2.0, "eval/l0/total/0.1": 3.0}]
    loss, l0 = panels(records)
    assert (loss.series[0].steps, l0.series[0].steps) == ((1, 2), (2,))
    assert panels([]) == ()
