# The demo beside a Redis of its own; see docker-compose.yml.
#
# Built in two stages: one of the task package's dependencies is compiled when it is installed.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY redis_replay ./redis_replay
RUN python -m venv /opt/redis-replay && /opt/redis-replay/bin/pip install --no-cache-dir ".[demo]"

FROM python:3.11-slim
COPY --from=build /opt/redis-replay /opt/redis-replay
RUN useradd --create-home replay
USER replay
WORKDIR /home/replay
ENV PATH=/opt/redis-replay/bin:$PATH
ENTRYPOINT ["redis-replay"]
CMD ["demo"]
