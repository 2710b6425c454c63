#!/usr/bin/env bash
# As in Apache's image: KAFKA_NODE_ID=1 becomes node.id=1.
set -euo pipefail
env | sed -n 's/^KAFKA_\([A-Z_]*\)=/\1=/p' | while IFS='=' read -r key value; do
  key=${key,,}
  echo "${key//_/.}=$value"
done > /tmp/server.properties
echo "log.dirs=/tmp/kafka-logs" >> /tmp/server.properties
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted -t aWNlc2l6ZS1rYWZrYS0wMQ -c /tmp/server.properties
exec java -Xmx512m -cp '/opt/kafka/libs/*' kafka.Kafka /tmp/server.properties
