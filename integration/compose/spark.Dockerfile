FROM icesize-base
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless python3-pip procps && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir 'pyspark[connect]==4.1.1' && mkdir -p /opt/spark/conf && \
    ln -s "$(python3 -c 'import pyspark, os; print(os.path.dirname(pyspark.__file__))')"/* /opt/spark/
COPY start-connect-server.sh /opt/spark/sbin/start-connect-server.sh
ENV SPARK_HOME=/opt/spark
WORKDIR /opt/spark
