# The demo beside a Redis of its own; see docker-compose.yml.
FROM python:3.11-slim
WORKDIR /opt/redis-replay
COPY pyproject.toml README.md LICENSE ./
COPY redis_replay ./redis_replay
RUN pip install --no-cache-dir ".[demo]" && useradd --create-home replay
USER replay
WORKDIR /home/replay
ENTRYPOINT ["redis-replay"]
CMD ["demo"]
