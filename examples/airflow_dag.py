"""Keeps tables well sized, once an hour."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

ICESIZE = "/opt/icesize/bin/icesize"  # an environment of its own
TABLES = ["lake.db.events"]

with DAG(
    "icesize",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(minutes=5)},
) as dag:
    for table in TABLES:
        BashOperator(
            task_id="maintain_" + table.replace(".", "_"),
            bash_command=f"{ICESIZE} maintain {table} --budget-seconds 25m",
        )
