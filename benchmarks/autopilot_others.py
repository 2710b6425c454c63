"""Nine more tables of two weeks, of diverse kinds. Day 0 is a Monday."""

from __future__ import annotations

import numpy as np

from benchmarks.autopilot_cases import Case, always, key
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.policy import MIB, SizePolicy

GIB = 1024 * MIB
KIB = 1024
IOT_BUCKETS = 8
BACKFILL_DAYS = (5, 6)
GROWTH_DAY = 7
DASHBOARD_DAY = 9
COUNTRY_WEIGHTS = tuple(1 / (rank + 1) ** 1.2 for rank in range(12))


def _is_weekend(day: int) -> bool:
    """Return whether a day is a Saturday or a Sunday."""
    return day % 7 >= 5


def _of_the_clock(hour: float) -> float:
    """Return the load at an hour of the day, relative to the mean: little at 3:00, most at 15:00."""
    return 1 - 0.8 * float(np.cos((hour - 3) / 24 * 2 * np.pi))


def _devices(number: int, random: np.random.Generator) -> Batch:
    """Return a batch of every 20 minutes, in all buckets of the day; one bucket has rows of yesterday."""
    day = number // 72
    batch = {key(day, bucket): int(1.5 * MIB * random.lognormal(0, 0.2)) for bucket in range(IOT_BUCKETS)}
    return {key(day - 1, int(random.integers(IOT_BUCKETS))): int(50 * KIB * random.lognormal(0, 0.8)), **batch}


def _clicks(number: int, random: np.random.Generator) -> Batch:
    """Return five minutes of clicks; one batch in five brings rows of mobile clients of the last hour, too."""
    hour, day = number // 12, number // 288
    size = int(6 * MIB * _of_the_clock(number % 288 / 12) * (0.5 if _is_weekend(day) else 1) * random.lognormal(0, 0.3))
    return {key(hour): size, **({key(hour - 1): size // 10} if hour and random.random() < 0.2 else {})}


def _click_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of clicks: dashboards are always on, analysts and the support work from Monday to Friday."""
    screens, night = Reads(288.0, 2), Reads(1.0, 24, 1)
    return (screens, night) if _is_weekend(day) else (screens, night, Reads(60.0, 24), Reads(8.0, 168, 0, ("user_id",)))


def _customers(number: int, random: np.random.Generator) -> Batch:
    """Return the new and changed customers of ten minutes."""
    return {key(): int(40 * KIB * _of_the_clock(number % 144 / 6) * random.lognormal(0, 0.5))}


def _events(number: int, random: np.random.Generator) -> Batch:
    """Return a quarter of an hour of events; on two days, a correction job writes rows of 60 old days besides."""
    day = number // 96
    batch = {key(day): int(15 * MIB * random.lognormal(0, 0.3))}
    if day in BACKFILL_DAYS:
        for back in sorted(random.choice(60, 20, replace=False).tolist(), reverse=True):
            batch[key(-1 - back)] = int(2 * MIB * random.lognormal(0, 0.5))
    return batch


def _event_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of events: reports of the week; for three days after the backfill, all history as well."""
    usual = (Reads(72.0, 7), Reads(2.0, 30, 1))
    is_checked = BACKFILL_DAYS[-1] < day <= BACKFILL_DAYS[-1] + 3
    return (*usual, Reads(30.0)) if is_checked else usual


def _logs(number: int, random: np.random.Generator) -> Batch:
    """Return the log of three minutes. One batch in 50 is that of an outage, with ten times the lines."""
    outage = 10 if random.random() < 0.02 else 1
    return {key(number // 480): int(12 * MIB * outage * random.lognormal(0, 0.4))}


def _orders(number: int, random: np.random.Generator) -> Batch:
    """Return half an hour of orders. A new month begins on day 8; a third of the batches have changes of last month."""
    month = 24 + (number // 48 >= 8)
    size = int(3 * MIB * _of_the_clock(number % 48 / 2) * random.lognormal(0, 0.3))
    return {**({key(month - 1): size // 30} if random.random() < 0.3 else {}), key(month): size}


def _factories(number: int, random: np.random.Generator) -> Batch:
    """Return a quarter of an hour of machine data: of three sites, and twice as many with finer sensors later."""
    day = number // 96
    sites, mean = (3, 0.5 * MIB) if day < GROWTH_DAY else (6, 2.0 * MIB)
    return {key(day, site): int(mean * random.lognormal(0, 0.4)) for site in range(sites)}


def _factory_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of factories: daily reports, later also screens in the halls and questions about machines."""
    reports = Reads(12.0, 3 if day < GROWTH_DAY else 6)
    if day < DASHBOARD_DAY:
        return (reports,)
    return reports, Reads(1440.0, 6), Reads(80.0, 36, 0, ("machine_id",))


def _bids(number: int, random: np.random.Generator) -> Batch:
    """Return half an hour of bids by country. Small countries are missing in some batches."""
    load = 90 * MIB / sum(COUNTRY_WEIGHTS) * _of_the_clock(number % 48 / 2)
    return {
        key(country): int(load * weight * random.lognormal(0, 0.4))
        for country, weight in enumerate(COUNTRY_WEIGHTS)
        if country < 6 or random.random() < 0.7
    }


def _ledger(number: int, random: np.random.Generator) -> Batch:
    """Return three hours of bookings in 16 buckets of accounts. Little is booked on weekends, much by the night run."""
    night = 4 if number % 8 == 0 else 1
    mean = 25 * MIB * night * (0.04 if _is_weekend(number // 8) else 1)
    return {key(bucket): int(mean * random.lognormal(0, 0.15)) for bucket in range(16)}


OTHERS: tuple[Case, ...] = (
    # Devices by day and hash bucket in a lake on S3: screens of today, and curves of single devices over a week.
    Case(
        "IoT by day and device bucket, curves of single devices",
        72,
        _devices,
        always(
            Reads(144.0, IOT_BUCKETS),
            Reads(200.0, 7 * IOT_BUCKETS, 0, ("device_id",), 1 / IOT_BUCKETS),
            Reads(1.0, IOT_BUCKETS, IOT_BUCKETS),
        ),
        columns=("device_id",),
        before={key(day, bucket): 108 * MIB for day in range(-30, 0) for bucket in range(IOT_BUCKETS)},
    ),
    # Web analytics by hour on S3, with the rhythm of day and week; queries for single users are rare but long.
    Case("clicks by hour, rhythm of day and week", 288, _clicks, _click_reads, columns=("user_id",)),
    # A small table that every query joins, with tiny commits of a synchronizing job, on the disks of one server.
    Case(
        "customers, a small table with tiny commits, no log",
        144,
        _customers,
        always(Reads(1200.0), Reads(300.0, None, 0, ("customer_id",))),
        is_logged=False,
        columns=("customer_id",),
        before={key(): 60 * MIB},
        prices=None,
    ),
    # Events by day that are calm but for a correction job over a weekend, which scatters rows over 60 old days.
    Case(
        "events by day, two days of backfill",
        96,
        _events,
        _event_reads,
        before={key(day): int(1.4 * GIB) for day in range(-60, 0)},
    ),
    # Logs that a streaming engine writes with four tasks; a nightly job maintains; people search them in outages only.
    Case(
        "logs of a streaming engine, hardly read, no log",
        480,
        _logs,
        always(Reads(2.0, 1, 0, (), 0.1), Reads(0.3, 7)),
        is_logged=False,
        is_inline=False,
        files_per_arrival=4,
        passes_per_day=1.0,
    ),
    # A shop's orders by month, written by Spark; rising order numbers are separated by bounds, customers are not.
    Case(
        "orders by month, Spark, single orders and customers",
        48,
        _orders,
        always(
            Reads(1500.0, None, 0, ("order_id",), 0.02),
            Reads(400.0, 3, 0, ("customer_id",)),
            Reads(24.0, 1),
            Reads(1.0, 12),
        ),
        columns=("customer_id", "order_id"),
        before={key(month): int((2 + month / 12) * GIB) for month in range(24)} | {key(24): int(3.1 * GIB)},
        is_inline=False,
        files_per_arrival=8,
        passes_per_day=4.0,
    ),
    # Machine data on a server in the company: after a week eight times the rows, then screens that read each minute.
    Case(
        "factories on local disks, growth and new dashboards",
        96,
        _factories,
        _factory_reads,
        columns=("machine_id",),
        prices=None,
    ),
    # Bids by country, the largest first: dashboards show it, and the largest four; so users fixed few small files.
    Case(
        "bids by country, users fixed two small files",
        48,
        _bids,
        always(Reads(240.0, 1, 11, ("campaign_id",)), Reads(60.0, 4, 8), Reads(3.0, None, 0, ("user_id",))),
        columns=("campaign_id", "user_id"),
        before={key(country): int(40 * GIB * weight) for country, weight in enumerate(COUNTRY_WEIGHTS)},
        policy=SizePolicy(max_small_files=2),
    ),
    # A bank's ledger on local disks, loaded by Trino in large batches of workdays; clerks ask for single accounts.
    Case(
        "ledger by account bucket, Trino, local disks, no log",
        8,
        _ledger,
        always(Reads(150.0, None, 0, ("account_id",), 1 / 16), Reads(2.0)),
        is_logged=False,
        columns=("account_id",),
        before={key(bucket): 8 * GIB for bucket in range(16)},
        is_inline=False,
        files_per_arrival=2,
        passes_per_day=2.0,
        prices=None,
    ),
)
"""Cases that were made after the autopilot was finished."""
