# icesize without Spark and Java: each run of the container is one command, such as a pass of maintenance, and ends with its exit
# code. cron, a Kubernetes CronJob or Airflow start it.
#
#   docker build -t icesize .
#   docker run --rm --env-file /etc/icesize.env icesize maintain lake.db.events --budget-seconds 25m
#
# A SQL catalog needs its driver: docker build --build-arg PACKAGES=psycopg2-binary -t icesize .

FROM python:3.12-slim AS wheel
COPY pyproject.toml README.md LICENSE /source/
COPY icesize /source/icesize
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
ARG PACKAGES=""
COPY --from=wheel /wheels /wheels
RUN python -m pip install --no-cache-dir /wheels/*.whl $PACKAGES && rm -r /wheels
# a number, because Kubernetes cannot see that a name is not root's; the home is the place of .pyiceberg.yaml and .icesize.toml
RUN useradd --uid 10001 --create-home icesize
USER 10001
WORKDIR /home/icesize
ENTRYPOINT ["icesize"]
CMD ["--help"]
