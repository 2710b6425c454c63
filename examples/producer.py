"""Send events to Kafka until the process is stopped; `examples/compose.yaml` runs this program."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from datetime import datetime, timedelta, timezone

from kafka import KafkaProducer  # kafka-python

EVENTS_A_SECOND = 500


def event(number: int) -> bytes:
    """Return one event as JSON; two in five are up to six hours late."""
    late = timedelta(hours=random.randrange(1, 7) if random.random() < 0.4 else 0)
    at = datetime.now(timezone.utc) - late
    return json.dumps({"id": number, "user_id": number % 97, "at": at.isoformat()}).encode()


def main() -> None:
    """Send about 500 events per second."""
    producer = KafkaProducer(bootstrap_servers=os.environ["KAFKA"])
    for number in itertools.count():
        producer.send(os.environ["TOPIC"], event(number))
        if number % EVENTS_A_SECOND == 0:
            producer.flush()
            time.sleep(1)


if __name__ == "__main__":
    main()
