# One NVIDIA GPU: docker build -t equipoise . && docker run --gpus all equipoise doctor
# Built and run with buildah and podman, without a GPU and on a base of our own in place of Docker Hub's: what was tried,
# and the options for verdicts of code, are in docs/install.md.
FROM python:3.12-slim

# gcc: Triton compiles its launchers. bubblewrap: programs of code tasks run inside it.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv/equipoise
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first and alone: PyPI's build for Linux carries CUDA.
RUN pip install --no-cache-dir -c constraints.txt torch
COPY src src
RUN pip install --no-cache-dir -c constraints.txt . && rm -r build src
COPY examples examples

RUN useradd --create-home trainer && mkdir runs && chown trainer . runs
USER trainer
# Ctrl-C's signal, which every command obeys: a container's first process ignores a SIGTERM that it does not handle.
STOPSIGNAL SIGINT
ENTRYPOINT ["equipoise"]
CMD ["doctor"]
