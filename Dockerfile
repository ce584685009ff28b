# One NVIDIA GPU. Not built by the project's tests: no container runtime was at hand when it was written.
# docker build -t equipoise . && docker run --gpus all equipoise doctor
# For verdicts of code inside the container see docs/install.md.
FROM python:3.12-slim

# gcc: Triton compiles its launchers. bubblewrap: programs of code tasks run inside it.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /srv/equipoise
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first and alone: PyPI's build for Linux carries CUDA.
RUN pip install --no-cache-dir "$(grep '^torch==' constraints.txt)"
COPY src src
RUN pip install --no-cache-dir -c constraints.txt .
COPY examples examples

RUN useradd --create-home trainer && chown trainer /srv/equipoise
USER trainer
ENTRYPOINT ["equipoise"]
CMD ["doctor"]
