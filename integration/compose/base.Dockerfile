FROM icesize-debian
# not in the places of Debian's own files, which its packages would write again
COPY certificates.crt cacerts /opt/
ENV SSL_CERT_FILE=/opt/certificates.crt PIP_CERT=/opt/certificates.crt PIP_BREAK_SYSTEM_PACKAGES=1 \
    JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/opt/cacerts DEBIAN_FRONTEND=noninteractive
