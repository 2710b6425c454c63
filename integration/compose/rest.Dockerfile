FROM icesize-base
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless curl && rm -rf /var/lib/apt/lists/*
COPY rest-server.jar /opt/rest-server.jar
EXPOSE 8181
CMD ["java", "-cp", "/opt/rest-server.jar", "org.apache.iceberg.rest.RESTCatalogServer"]
