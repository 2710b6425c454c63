"""Three more tables of two weeks, without logs of their reads. Day 0 is a Monday."""

from __future__ import annotations

import numpy as np

from benchmarks.autopilot_cases import Case, key
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.policy import MIB

GIB = 1024 * MIB
KIB = 1024
STUDY_DAY = 10
DEPARTMENT_WEIGHTS = tuple(1 / (rank + 1) ** 0.8 for rank in range(12))
COMPANY_WEIGHTS = (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)
COMPANIES = len(COMPANY_WEIGHTS)
NEW_MONTH_DAY = 9
CLOSING_DAYS = range(NEW_MONTH_DAY - 1, NEW_MONTH_DAY + 3)


def _is_weekend(day: int) -> bool:
    """Return whether a day is a Saturday or a Sunday."""
    return day % 7 >= 5


def _stations(number: int, random: np.random.Generator) -> Batch:
    """Return five minutes of air sensors; one batch in 15 has rows of yesterday, of a station that was offline."""
    day = number // 288
    late = {key(day - 1): int(60 * KIB * random.lognormal(0, 0.8))} if random.random() < 1 / 15 else {}
    return {**late, key(day): int(900 * KIB * random.lognormal(0, 0.1))}


def _station_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of air sensors: a summary of yesterday, on Mondays of the week, and once a study of stations."""
    reads = [Reads(1.0, 1, 1)]
    if day % 7 == 0:
        reads.append(Reads(1.0, 7, 1))
    if day == STUDY_DAY:
        reads.append(Reads(12.0, 90, 0, ("station_id",)))
    return tuple(reads)


def _products(number: int, random: np.random.Generator) -> Batch:
    """Return 20 minutes of changed products of some departments; at 2:00, the lists of suppliers change all of them."""
    weights = np.array(DEPARTMENT_WEIGHTS) / sum(DEPARTMENT_WEIGHTS)
    day, slot = divmod(number, 72)
    if slot == 6:
        return {key(rank): int(80 * MIB * weight * random.lognormal(0, 0.3)) for rank, weight in enumerate(weights)}
    is_office_open = 24 <= slot < 54 and not _is_weekend(day)
    changed = random.choice(12, int(random.integers(3, 8)) if is_office_open else 1, replace=False, p=weights)
    return {key(rank): int(250 * KIB * random.lognormal(0, 0.9)) for rank in sorted(changed.tolist())}


def _product_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of products: pages and lists of the shop, most on weekends, and the build of its search."""
    shoppers = 1.5 if _is_weekend(day) else 1.0
    return (
        Reads(3000 * shoppers, None, 0, ("product_id",)),
        Reads(250 * shoppers, 1, 11),
        Reads(120 * shoppers, 1, 8, ("brand",)),
        Reads(24.0),
    )


def _payments(number: int, random: np.random.Generator) -> Batch:
    """Return an hour of payments by month and company; while last month is closed, it gets corrections as well."""
    day, hour = divmod(number, 24)
    load = (3 if 8 <= hour < 18 else 0.3) * (0.2 if _is_weekend(day) else 1)
    sizes = [int(24 * MIB * load * weight * random.lognormal(0, 0.3)) for weight in COMPANY_WEIGHTS]
    if day < NEW_MONTH_DAY:
        return {key(24, company): size for company, size in enumerate(sizes)}
    new = {key(25, company): size for company, size in enumerate(sizes)}
    if day not in CLOSING_DAYS:
        return new
    return {**{key(24, company): size // 15 for company, size in enumerate(sizes)}, **new}


def _payment_reads(day: int) -> tuple[Reads, ...]:
    """Return the reads of payments: few a day, but many of the month that ends, on its last day and three after."""
    if day not in CLOSING_DAYS:
        return (Reads(2.0, COMPANIES),) if not _is_weekend(day) else (Reads(0.2, COMPANIES),)
    newer = COMPANIES if day >= NEW_MONTH_DAY else 0
    return (
        Reads(400.0, COMPANIES, newer, ("account_id",)),
        Reads(120.0, 1, newer + COMPANIES - 1),
        Reads(40.0, COMPANIES, newer),
        Reads(6.0, 12 * COMPANIES, newer),
    )


UNKNOWN: tuple[Case, ...] = (
    # Sensors of the air of a city, that a stream writes to S3 by day because the law says so; hardly anybody looks.
    Case(
        "air sensors by day, a stream, hardly read",
        288,
        _stations,
        _station_reads,
        is_logged=False,
        columns=("station_id",),
        before={key(day): 255 * MIB for day in range(-120, 0)},
    ),
    # Products by department, the largest first, on the disks of a shop: small changes all day, and reads all day.
    Case(
        "products by department, local disks, read all day",
        72,
        _products,
        _product_reads,
        is_logged=False,
        columns=("product_id", "brand"),
        before={key(rank): int(3 * GIB * weight) for rank, weight in enumerate(DEPARTMENT_WEIGHTS)},
        prices=None,
    ),
    # Payments of a group by month and company, which Spark writes to S3 each hour; day 0 is the 22nd of a month.
    Case(
        "payments by month and company, Spark, read at month end",
        24,
        _payments,
        _payment_reads,
        is_logged=False,
        columns=("account_id",),
        before={
            key(month, company): int((20 if month < 24 else 14) * GIB * weight)
            for month in range(12, 25)
            for company, weight in enumerate(COMPANY_WEIGHTS)
        },
        is_inline=False,
        files_per_arrival=6,
        passes_per_day=2.0,
    ),
)
"""Cases whose reads nobody logs, made after the rule for them was finished."""
