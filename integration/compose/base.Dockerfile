FROM icesize-debian
# not in the place of Debian's own file, which its package would write again
COPY certificates.crt /opt/certificates.crt
ENV SSL_CERT_FILE=/opt/certificates.crt PIP_CERT=/opt/certificates.crt PIP_BREAK_SYSTEM_PACKAGES=1 \
    DEBIAN_FRONTEND=noninteractive
