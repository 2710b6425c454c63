FROM icesize-base
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
COPY weed /usr/bin/weed
ENTRYPOINT ["/usr/bin/weed"]
