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

FROM python:${PYTHON}-slim AS cpu-packages
# PyTorch without CUDA is a tenth of the size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/seesay \
    && /opt/seesay/bin/pip install --no-cache-dir --index-url "${TORCH_INDEX}" "torch>=2.11" "torchvision>=0.26"
COPY --from=wheel /wheels /wheels
RUN /opt/seesay/bin/pip install --no-cache-dir "$(echo /wheels/seesay-*.whl)[all]"

FROM python:${PYTHON}-slim AS cuda-packages
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/seesay \
    && /opt/seesay/bin/pip install --no-cache-dir "$(echo /wheels/seesay-*.whl)[all]"

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
