"""Keeps tables well sized, once an hour."""

import dagster as dg

import icesize

TABLES = ["lake.db.events"]


def maintain(name: str) -> dg.OpDefinition:
    @dg.op(name="maintain_" + name.replace(".", "_"), retry_policy=dg.RetryPolicy(max_retries=1, delay=300))
    def op(context: dg.OpExecutionContext) -> None:
        table = icesize.open(None, name)
        report = table.maintain(budget_seconds=1500)
        if not report.succeeded:
            raise dg.Failure(f"{name}: {report.failed}")
        context.add_output_metadata(
            {
                "seconds": report.seconds,
                "bytes_merged": report.bytes_merged,
                "small_files_max": table.inspect().small_files_max,
            }
        )

    return op


OPS = [maintain(name) for name in TABLES]


@dg.job(executor_def=dg.in_process_executor)  # one table after another
def keep_well_sized() -> None:
    for op in OPS:
        op()


hourly = dg.ScheduleDefinition(job=keep_well_sized, cron_schedule="17 * * * *")
defs = dg.Definitions(jobs=[keep_well_sized], schedules=[hourly])
