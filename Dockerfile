# Coterie with all its extras on a processor: `docker build -t coterie .`, then `docker run --rm coterie run --rounds 5`.
# The results are in /work: mount a folder there to keep them, `docker run --rm -v "$PWD:/work" coterie run`.
FROM python:3.12-slim

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    RAY_USAGE_STATS_ENABLED=0

WORKDIR /src
COPY constraints.txt ./
# torch first and alone, from the index of processor builds: with it in place nothing later can pull CUDA.
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN pip install "$(grep '^torch==' constraints.txt)" --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
COPY packages ./packages
RUN pip install --constraint constraints.txt ".[all]" ./packages/inference ./packages/tables ./packages/views ./packages/field ./packages/studies ./packages/advice ./packages/attacks ./packages/recipes ./packages/bench ./packages/conformance ./packages/board

# Not as root: a run needs nothing but its own folder.
RUN useradd --create-home --uid 1000 coterie && mkdir /work && chown coterie /work
USER 1000
WORKDIR /work
ENTRYPOINT ["coterie"]
CMD ["--help"]
