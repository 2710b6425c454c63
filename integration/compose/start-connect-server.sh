#!/usr/bin/env bash
# PySpark's package lacks this script of a Spark distribution.
exec /opt/spark/bin/spark-submit --class org.apache.spark.sql.connect.service.SparkConnectServer \
  --name "Spark Connect server" "$@" spark-internal
