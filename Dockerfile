# syntax=docker/dockerfile:1
# seesay serve api_server, without root, on port 23333. docs/deploying.md says how to run it.
#   docker build --target cpu --tag seesay:cpu .
#   docker build --target cuda --tag seesay:cuda .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY seesay seesay
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# uv installs in a third of pip's time. Compiled here, as a container cannot keep what it compiles.
FROM python:${PYTHON}-slim AS installer
RUN pip install --no-cache-dir --target /opt/uv "uv>=0.9" \
    && python -m venv /opt/seesay
ENV UV_PYTHON=/opt/seesay \
    UV_COMPILE_BYTECODE=1

FROM installer AS cpu-packages
# PyTorch without CUDA is a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/uv/bin/uv pip install --no-cache --index-url "${TORCH_INDEX}" "torch>=2.11" "torchvision>=0.26"
COPY --from=wheel /wheels /wheels
RUN /opt/uv/bin/uv pip install --no-cache "$(echo /wheels/seesay-*.whl)[all]"

FROM installer AS cuda-packages
COPY --from=wheel /wheels /wheels
RUN /opt/uv/bin/uv pip install --no-cache "$(echo /wheels/seesay-*.whl)[all]"

FROM python:${PYTHON}-slim AS base
RUN useradd --uid 10001 --create-home seesay \
    && install --directory --owner seesay /models
ENV PATH=/opt/seesay/bin:$PATH \
    HF_HOME=/models \
    PYTHONUNBUFFERED=1
WORKDIR /home/seesay
EXPOSE 23333
# A large model loads, and is downloaded, in minutes: until then, failures do not count.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:23333/health', timeout=4)"]
ENTRYPOINT ["seesay"]
CMD ["serve", "api_server"]

FROM base AS cpu
COPY --from=cpu-packages /opt/seesay /opt/seesay
USER 10001

FROM base AS cuda
# Triton compiles the launchers of kernels with it. The driver comes from the host (NVIDIA Container Toolkit).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/seesay /opt/seesay
USER 10001
