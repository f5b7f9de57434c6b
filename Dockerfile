# Builds the image of all components with Docker or Buildah. For several architectures:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag ghcr.io/virtual-node/virtual-node:0.1.0 .
#
# hack/image/rootfs.py builds the file system. `python -m hack.image` uses it as well and needs no Docker; both images contain
# the same files. It verifies downloads: Debian packages by signature, wheels by the hashes in hack/image/*.txt.
#
# Digest of the multi-architecture index of debian:12-slim, also in .github/workflows.
FROM debian:12-slim@sha256:60eac759739651111db372c07be67863818726f754804b8707c90979bda511df AS build
RUN apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends binutils python3 python3-pip \
 && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY hack/__init__.py hack/__init__.py
COPY hack/image hack/image
COPY clusterset clusterset
COPY controller_runtime controller_runtime
COPY virtual_node virtual_node
COPY webhook webhook
COPY descheduler descheduler
COPY multi_scheduler multi_scheduler
COPY swarm swarm
RUN python3 -m hack.image.rootfs /rootfs

FROM scratch
COPY --from=build /rootfs/base /
COPY --from=build /rootfs/app /
ENV PATH=/usr/bin LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /
ENTRYPOINT ["virtual-node"]
LABEL org.opencontainers.image.title=virtual-node org.opencontainers.image.licenses=Apache-2.0
