from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from joulecast.errors import IntensityError, UnknownCountryError, UsageError
from joulecast.explore.carbon import countries, country_intensity, load_grid, load_series
from joulecast.results import Origin, Quantity
from joulecast.units import J_PER_KWH, MILLI, SECONDS_PER_HOUR

G_PER_KWH = MILLI / J_PER_KWH
HOUR = SECONDS_PER_HOUR


def lasting(value_s, low_s=None, high_s=None):
    return Quantity(value=value_s, low=low_s or value_s, high=high_s or value_s, origin=Origin.CALIBRATED)


def series(path, *values, start="2026-03-01T00:00"):
    first = datetime.fromisoformat(start)
    rows = [f"{(first + timedelta(hours=i)).isoformat()},{value}" for i, value in enumerate(values)]
    path.write_text("\n".join(["timestamp,gco2e_per_kwh", *rows]) + "\n")
    return path


# --- countries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["France", "france", "FRA", "fr", " FR "])
def test_a_country_goes_by_name_and_by_either_code(name):
    assert country_intensity(name) == country_intensity("France")


def test_a_country_states_source_and_year():
    found = country_intensity("DE")
    assert "Germany" in found.source
    assert found.year in found.source
    assert "carbontracker" in found.source


def test_every_country_has_a_figure_that_can_be():
    g_per_kwh = {name: country_intensity(name).kg_per_j / G_PER_KWH for name in countries()}
    assert len(g_per_kwh) > 200
    assert min(g_per_kwh.values()) > 10
    assert max(g_per_kwh.values()) < 1400
    # hydro and nuclear, mixed, coal: the order people know, so that no row has slipped
    assert g_per_kwh["Norway"] < g_per_kwh["France"] < 100 < g_per_kwh["Germany"] < g_per_kwh["Poland"]
    assert g_per_kwh["South Africa"] > 600


def test_an_unknown_country_gets_near_misses():
    with pytest.raises(UnknownCountryError, match="did you mean germany"):
        load_grid("Germny")


def test_a_number_is_in_g_per_kwh():
    found = load_grid("41.5")
    assert found.kg_per_j == pytest.approx(41.5 * G_PER_KWH)
    assert "as given" in found.source


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "50000"])
def test_a_number_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError, match="gCO2e/kWh"):
        load_grid(text)


def test_co2e_is_energy_times_intensity():
    energy = Quantity(value=J_PER_KWH, low=0.5 * J_PER_KWH, high=2 * J_PER_KWH, origin=Origin.CALIBRATED)
    co2e = load_grid("100").over(lasting(1.0)).of(energy)
    assert (co2e.low, co2e.value, co2e.high) == pytest.approx((0.05, 0.1, 0.2))


# --- series ---------------------------------------------------------------------------------------


def test_a_run_is_weighted_by_its_hours(tmp_path):
    grid = load_grid(str(series(tmp_path / "grid.csv", 100, 200, 400)))
    start = datetime(2026, 3, 1, 0, 30, tzinfo=UTC)
    over = grid.over(lasting(2 * HOUR), start)
    assert over.kg_per_j == pytest.approx((0.5 * 100 + 200 + 0.5 * 400) / 2 * G_PER_KWH)


def test_a_time_without_a_zone_is_utc(tmp_path):
    grid = load_series(series(tmp_path / "grid.csv", 100, 200, 400))
    in_berlin = datetime(2026, 3, 1, 2, tzinfo=timezone(timedelta(hours=1)))
    assert grid.over(lasting(HOUR), in_berlin) == grid.over(lasting(HOUR), datetime(2026, 3, 1, 1))
    assert grid.over(lasting(HOUR), in_berlin).kg_per_j == pytest.approx(200 * G_PER_KWH)


def test_the_interval_holds_the_hours_of_a_shorter_and_a_longer_run(tmp_path):
    grid = load_series(series(tmp_path / "grid.csv", 100, 100, 400, 400))
    over = grid.over(lasting(2 * HOUR, HOUR, 3 * HOUR), datetime(2026, 3, 1))
    assert over.kg_per_j == pytest.approx(100 * G_PER_KWH)
    assert over.low_kg_per_j == pytest.approx(100 * G_PER_KWH)
    assert over.high_kg_per_j == pytest.approx(200 * G_PER_KWH)


def test_without_a_start_the_interval_is_the_best_and_the_worst_one(tmp_path):
    values = [50, 80, 300, 500, 120, 60]
    grid = load_series(series(tmp_path / "grid.csv", *values))
    over = grid.over(lasting(2.5 * HOUR))
    minutes = np.repeat(values, 60)
    windows = [minutes[i : i + 150].mean() for i in range(len(minutes) - 150 + 1)]
    assert over.kg_per_j == pytest.approx(np.mean(values) * G_PER_KWH)
    assert over.low_kg_per_j == pytest.approx(min(windows) * G_PER_KWH)
    assert over.high_kg_per_j == pytest.approx(max(windows) * G_PER_KWH)
    assert "2026-03-01" in over.year
    assert over.source == "grid.csv"


def test_a_run_longer_than_the_series_takes_its_mean(tmp_path):
    over = load_series(series(tmp_path / "grid.csv", 100, 300)).over(lasting(100 * HOUR))
    assert over.low_kg_per_j == over.high_kg_per_j == pytest.approx(200 * G_PER_KWH)


@pytest.mark.parametrize("start", ["2026-02-28T23:00", "2026-03-01T02:00", "2026-03-02T00:00"])
def test_a_run_outside_the_series_is_refused(tmp_path, start):
    grid = load_series(series(tmp_path / "grid.csv", 100, 200, 400))
    with pytest.raises(UsageError, match="covers 2026-03-01 00:00Z to 2026-03-01 03:00Z"):
        grid.over(lasting(2 * HOUR), datetime.fromisoformat(start))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time,gco2e_per_kwh\n", "lacks the column timestamp"),
        ("timestamp,gco2e_per_kwh\n2026-03-01,100\n", "has 1 rows"),
        ("timestamp,gco2e_per_kwh\nnoon,100\n", "line 2: 'noon' is no ISO 8601 time"),
        ("timestamp,gco2e_per_kwh\n2026-03-01,-4\n", "line 2: gco2e_per_kwh is '-4'"),
        ("timestamp,gco2e_per_kwh\n2026-03-01,\n", "line 2: gco2e_per_kwh is ''"),
        ("timestamp,gco2e_per_kwh\n2026-03-01,1\n2026-03-01,2\n", "line 3: 2026-03-01 does not come after"),
    ],
)
def test_a_corrupt_series_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "grid.csv").write_text(text)
    with pytest.raises(IntensityError, match=message):
        load_series(tmp_path / "grid.csv")


def test_a_missing_series_is_refused():
    with pytest.raises(UsageError, match="no such file of intensities"):
        load_grid("missing.csv")
