"""The fields of a pod that ``status`` uses; msgspec skips all others when it decodes a list."""

from __future__ import annotations

from typing import Any, TypedDict


class PodFields(TypedDict, total=False):
    """A pod without the fields that are large and not used, such as managedFields, environment and volumes."""

    metadata: _Metadata
    spec: _Spec
    status: _Status | None


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    creationTimestamp: str | None
    deletionTimestamp: str | None
    annotations: dict[str, str] | None


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str | None
    resources: dict[str, Any] | None


class _Spec(TypedDict, total=False):
    nodeName: str | None
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    overhead: dict[str, Any] | None
    resources: dict[str, Any] | None


class _ContainerStatus(TypedDict, total=False):
    name: str
    ready: bool | None
    started: bool | None
    state: dict[str, Any] | None
    lastState: dict[str, Any] | None


class _Status(TypedDict, total=False):
    phase: str | None
    reason: str | None
    message: str | None
    conditions: list[dict[str, Any]] | None
    initContainerStatuses: list[_ContainerStatus] | None
    containerStatuses: list[_ContainerStatus] | None
