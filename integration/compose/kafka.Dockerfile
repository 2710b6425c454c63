FROM icesize-base
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
COPY jars /opt/kafka/libs
COPY start-kafka.sh /opt/kafka/start-kafka.sh
COPY kafka-topics.sh /opt/kafka/bin/kafka-topics.sh
CMD ["/opt/kafka/start-kafka.sh"]
