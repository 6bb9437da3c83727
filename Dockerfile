# The service on a CPU: see docs/guide/deployment.md.
FROM python:3.11-slim

COPY pyproject.toml README.md LICENSE /antipodal/
COPY src /antipodal/src
RUN pip install --no-cache-dir '/antipodal[serve,postgres]' \
    && useradd --uid 10001 --create-home antipodal \
    && install --directory --owner antipodal /data

USER antipodal
WORKDIR /data
VOLUME /data
ENV ANTIPODAL_STORE=sqlite:////data/codes.db
EXPOSE 8000

# The health check must not use a proxy of the environment.
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=5)"]

ENTRYPOINT ["antipodal"]
CMD ["serve", "--model", "/data/model.antipodal", "--keys", "/run/secrets/keys", "--host", "0.0.0.0", "--port", "8000"]
