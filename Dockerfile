# The service on a CPU, without PyTorch: see docs/guide/deployment.md.
FROM python:3.11.14-slim-bookworm

# Dependencies before the source: a change of the source does not install them again.
COPY deploy/requirements.lock /antipodal/deploy/
RUN pip install --no-cache-dir --require-hashes --requirement /antipodal/deploy/requirements.lock \
    && useradd --uid 10001 --create-home antipodal \
    && install --directory --owner antipodal /data

COPY pyproject.toml README.md LICENSE /antipodal/
COPY src /antipodal/src
RUN pip install --no-cache-dir --no-deps --no-build-isolation /antipodal

USER 10001
WORKDIR /data
VOLUME /data
ENV ANTIPODAL_STORE=/data/docs.db
EXPOSE 8000

# The health check must not use a proxy of the environment.
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=5)"]

ENTRYPOINT ["antipodal"]
CMD ["serve", "--keys", "/run/secrets/keys", "--host", "0.0.0.0", "--port", "8000"]
