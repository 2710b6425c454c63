"""Keeps tables well sized, once an hour."""

import dagster as dg

import icesize

TABLES = ["lake.db.events"]


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1, delay=300))
def maintain(context: dg.OpExecutionContext) -> None:
    for name in TABLES:
        table = icesize.open(None, name)
        report = table.maintain(budget_seconds=1500)
        state = table.inspect()
        context.add_output_metadata(
            {
                "table": name,
                "seconds": report.seconds,
                "bytes_merged": report.bytes_merged,
                "small_files_max": state.small_files_max,
            }
        )
        if not report.succeeded:
            raise dg.Failure(f"{name}: {report.failed}")


@dg.job
def keep_well_sized() -> None:
    maintain()


hourly = dg.ScheduleDefinition(job=keep_well_sized, cron_schedule="17 * * * *")
defs = dg.Definitions(jobs=[keep_well_sized], schedules=[hourly])
