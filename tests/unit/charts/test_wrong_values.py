"""Invalid values are an error that names them, before anything is created."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hack.chart import template
from tests.thorough import some

Values = dict[str, Any]

SECRET = "kubeconfigSecret: {name: s}"
V1 = "apiVersion: descheduler/v1alpha1, kind: DeschedulerPolicy"
V2 = "apiVersion: descheduler/v1alpha2, kind: DeschedulerPolicy"


def cluster(text: str) -> str:
    """Return values with one lower cluster."""
    return f"virtualNode: {{clusters: [{{{text}}}]}}"


PROVIDERS = "namespace: fleet, providers: [{name: a, execConfig: {command: a}}]"


def profiles(text: str, more: str = "replicas: 1") -> str:
    """Return values with ClusterProfiles."""
    return f"virtualNode: {{clusterProfiles: {{{text}}}, {more}}}"


def kubelet(text: str) -> str:
    """Return values of the kubelet API."""
    return f"virtualNode: {{kubelet: {{{text}}}}}"


WRONG = {
    profiles("namespace: fleet"): "missing property 'providers'",
    profiles("namespace: fleet, providersFile: x"): "additional properties 'providersFile'",
    profiles(f"{PROVIDERS}, defaults: {{lables: {{}}}}"): "additional properties 'lables'",
    profiles("namespace: fleet, providers: [{name: a}]"): "missing property 'execConfig'",
    profiles(f"{PROVIDERS}, namePrefix: ''"): "virtualNode.clusterProfiles.namePrefix: without names",
    profiles(PROVIDERS, "kubelet: {servingCertificate: CSR}"): "virtualNode.clusterProfiles.names: required",
    "virtualNode: {config: {clusterProfiles: {namespace: a}}}": "the chart says it, from virtualNode.clusterProfiles",
    "replicas: 2": "'replicas' not allowed",
    "virtualNode: {replica: 2}": "/virtualNode': additional properties 'replica'",
    "webhook: {tls: {secret: a}}": "/webhook/tls': additional properties 'secret'",
    "multiScheduler: {scheduler: {image: {name: a}}}": "/multiScheduler/scheduler/image': additional properties 'name'",
    "metrics: {serviceMonitor: {enable: true}}": "/metrics/serviceMonitor': additional properties 'enable'",
    "image: {pullPolicy: Sometimes}": "/image/pullPolicy'",
    "image: {digest: abc}": "/image/digest'",
    "image: {tag: 'a b'}": "/image/tag'",
    "imagePullSecrets: [registry]": "/imagePullSecrets/0'",
    "clusterId: 'a b'": "/clusterId'",
    "nameOverride: Upper": "/nameOverride'",
    "log: {level: loud}": "/log/level'",
    "admissionPolicy: {enabled: maybe}": "/admissionPolicy/enabled'",
    "log: {format: xml}": "/log/format'",
    "priorityClass: {value: 2000000000}": "/priorityClass/value'",
    "freezePeriod: 5": "/freezePeriod'",
    "freezePeriod: 5 minutes": "/freezePeriod'",
    "descheduler: {interval: often}": "/descheduler/interval'",
    "descheduler: {unschedulableThreshold: 3d}": "/descheduler/unschedulableThreshold'",
    "descheduler: {moveOffLostClusters: 'yes'}": "/descheduler/moveOffLostClusters'",
    "descheduler: {moveRunningAfter: 300}": "/descheduler/moveRunningAfter'",
    "webhook: {failurePolicy: Maybe}": "/webhook/failurePolicy'",
    "webhook: {timeoutSeconds: 31}": "/webhook/timeoutSeconds'",
    "webhook: {port: 70000}": "/webhook/port'",
    "webhook: {ignoreSelectorKeys: clusterID}": "/webhook/ignoreSelectorKeys'",
    "webhook: {podLabels: {a: 1}}": "/webhook/podLabels/a'",
    "webhook: {podDisruptionBudget: {maxUnavailable: half}}": "/webhook/podDisruptionBudget/maxUnavailable'",
    "webhook: {topologySpreadConstraints: {maxSkew: 1}}": "/webhook/topologySpreadConstraints'",
    "webhook: {extraEnv: [{name: A, value: 1}]}": "/webhook/extraEnv/0/value': got number, want null or string",
    "webhook: {extraEnv: [{name: A, value: true}]}": "/webhook/extraEnv/0/value': got boolean, want null or string",
    "webhook: {extraEnv: [{value: a}]}": "/webhook/extraEnv/0': missing property 'name'",
    "webhook: {tolerations: [{key: a, value: 1}]}": "/webhook/tolerations/0/value': got number",
    "webhook: {tolerations: [{key: a, tolerationSeconds: '5'}]}": "/webhook/tolerations/0/tolerationSeconds'",
    "webhook: {topologySpreadConstraints: [{maxSkew: '1'}]}": "/webhook/topologySpreadConstraints/0/maxSkew'",
    "webhook: {extraVolumes: [{emptyDir: {}}]}": "/webhook/extraVolumes/0': missing property 'name'",
    "webhook: {serviceAccount: {create: false}}": "webhook.serviceAccount.name: required",
    "multiScheduler: {agents: []}": "/multiScheduler/agents'",
    "multiScheduler: {agents: [{weight: 1}]}": "missing property 'name'",
    "multiScheduler: {weight: 0}": "/multiScheduler/weight'",
    "metrics: {service: {enabled: false}, serviceMonitor: {enabled: true}}": "needs metrics.service.enabled",
    "metrics: {serviceMonitor: {interval: 30}}": "/metrics/serviceMonitor/interval'",
    "webhook: {port: 9090}": "webhook: port and metrics.port must differ",
    "virtualNode: {metrics: {port: 8090}}": "virtualNode: web.port and metrics.port must differ",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{port: 9090}}": "multiScheduler: port and metrics.port must differ",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{scheduler: {{enabled: false}}}}": "multiScheduler.tls.enabled: without",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{tls: {{secretName: a}}}}": "multiScheduler.tls.clientSecretName: required",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{tls: {{clientSecretName: a}}}}": "multiScheduler.tls.secretName: required",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{extraArgs: [--tlscert=a]}}": "--tlscert=a: the chart says it",
    "multiScheduler: {tls: {enabled: 1}}": "/multiScheduler/tls/enabled'",
    "uninstall: {timeout: 0}": "/uninstall/timeout'",
    kubelet("servingCertificate: ACME"): "/virtualNode/kubelet/servingCertificate'",
    kubelet("servingCertificate: Files"): "/virtualNode/kubelet/servingSecret'",
    kubelet("approveServingCertificate: true"): "/virtualNode/kubelet/servingCertificate'",
    kubelet("drainTimeout: 5m"): "/virtualNode/kubelet/drainTimeout'",
    "virtualNode: {config: {clusters: []}}": "virtualNode.config.clusters: the chart says it, from virtualNode.clusters",
    "virtualNode: {config: {kind: A}}": "virtualNode.config.kind: the chart says it itself; leave it out",
    "virtualNode: {config: {metricsAddress: ':9091'}}": (
        "virtualNode.config.metricsAddress: the chart says it, from virtualNode.metrics.port; leave it out"
    ),
    "virtualNode: {config: {webAddress: ':80'}}": "from virtualNode.web.enabled and virtualNode.web.port",
    "virtualNode: {config: {kubelet: {port: 10300}}}": (
        "virtualNode.config.kubelet.port: the chart says it, from virtualNode.kubelet.port; leave it out"
    ),
    "virtualNode: {config: {kubelet: {servingCertificate: CSR}}}": "from virtualNode.kubelet.servingCertificate",
    "virtualNode: {config: {leaderElection: {namespace: a}}}": "virtualNode.config.leaderElection.namespace: the chart",
    "virtualNode: {config: {workers: 2}}": "virtualNode.config.workers: more than 1 needs virtualNode.mode Sharded",
    "virtualNode: {config: {clusterId: a}}": "virtualNode.config.clusterId: the chart says it, from clusterId",
    "virtualNode: {extraArgs: ['--metrics-addr=:9091']}": (
        "virtualNode.extraArgs: --metrics-addr=:9091: the chart says it, from the values of virtualNode; leave it out"
    ),
    "webhook: {extraArgs: [--port, '1']}": "webhook.extraArgs: --port: the chart says it",
    "descheduler: {extraArgs: ['--health-addr=:1']}": "descheduler.extraArgs: --health-addr=:1: the chart says it",
    "virtualNode: {kubelet: null}": "at '/virtualNode': missing property 'kubelet'",
    "virtualNode: null": "missing property 'virtualNode'",
    "webhook: {tls: null}": "at '/webhook': missing property 'tls'",
    "webhook: {port: null}": "at '/webhook': missing property 'port'",
    "metrics: {dashboard: null}": "at '/metrics': missing property 'dashboard'",
    "multiScheduler: {scheduler: {image: null}}": "at '/multiScheduler/scheduler': missing property 'image'",
    "virtualNode: {metrics: {port: 10250}}": "virtualNode: port 10250 is the kubelet API's of one of 0 virtual nodes",
    "virtualNode: {hostNetwork: true}": "with hostNetwork the node's own kubelet has 10250: choose another",
    "webhook: {updateStrategy: {type: OnDelete}}": "/webhook/updateStrategy/type'",
    "webhook: {updateStrategy: {rollingUpdate: {maxSurge: some}}}": "/webhook/updateStrategy/rollingUpdate/maxSurge'",
    "extraObjects: [{kind: ConfigMap}]": "/extraObjects/0': missing property 'apiVersion'",
    cluster(f"name: a, {SECRET}, config: {{port: 9090}}"): "virtualNode: port 9090 is the kubelet API's",
    cluster(SECRET): "/virtualNode/clusters/0': missing property 'name'",
    cluster(f"name: Lower_1, {SECRET}"): "/virtualNode/clusters/0/name'",
    cluster(f"name: {'c' * 51}, {SECRET}"): "/virtualNode/clusters/0/name'",
    cluster("name: a"): "missing property 'kubeconfigSecret'",
    cluster(f"name: a, kubeconfig: text, {SECRET}"): "/virtualNode/clusters/0': 'oneOf' failed",
    cluster("name: a, kubeconfigSecret: s"): "/virtualNode/clusters/0/kubeconfigSecret'",
    cluster(
        "name: a, kubeconfigSecret: {key: a}"
    ): "/virtualNode/clusters/0/kubeconfigSecret': missing property 'name'",
    cluster(f"name: a, nodeName: b, {SECRET}"): "/virtualNode/clusters/0': additional properties 'nodeName'",
    cluster(f"name: a, {SECRET}, config: {{kubeconfig: /b}}"): "/virtualNode/clusters/0/config/kubeconfig'",
    cluster(f"name: a, {SECRET}, config: {{lables: {{a: b}}}}"): (
        "/virtualNode/clusters/0/config': additional properties 'lables' not allowed"
    ),
    cluster(
        f"name: a, {SECRET}, config: {{clientQps: fast}}"
    ): "/clusters/0/config/clientQps': got string, want number",
    cluster(f"name: a, {SECRET}, config: {{clientQps: 0}}"): "/config/clientQps': exclusiveMinimum: got 0",
    cluster(
        f"name: a, {SECRET}, config: {{clientBurst: 1.5}}"
    ): "/config/clientBurst': got number, want integer",
    cluster(f"name: a, {SECRET}, config: {{labels: {{a: 1}}}}"): "/config/labels/a': got number, want string",
    cluster(
        f"name: a, {SECRET}, config: {{nodes: [{{labels: {{}}}}]}}"
    ): "/nodes/0': missing property 'name'",
    cluster(
        f"name: a, {SECRET}, config: {{taints: [{{key: a, effect: Never}}]}}"
    ): "/config/taints/0/effect'",
    cluster(f"name: a, {SECRET}, config: {{podSelector: {{matchLabel: {{}}}}}}"): "properties 'matchLabel'",
    cluster(
        f"name: a, {SECRET}, config: {{podSelector: {{matchExpressions: [{{key: a, operator: Like}}]}}}}"
    ): "/matchExpressions/0/operator'",
    cluster(
        f"name: a, {SECRET}, config: {{volumes: {{deletionPolicy: Perhaps}}}}"
    ): "/volumes/deletionPolicy'",
    "virtualNode: {config: {podSyncWorker: 1}}": "/virtualNode/config': additional properties 'podSyncWorker'",
    "virtualNode: {config: {limits: {watches: -1}}}": "/virtualNode/config/limits/watches'",
    "virtualNode: {config: {enableControllers: [PVController]}}": "/virtualNode/config/enableControllers/0'",
    "virtualNode: {config: {pingInterval: 10s}}": "/virtualNode/config/pingInterval': got string, want number",
    cluster(f"name: a, {SECRET}, config: {{policy: {{preset: strict}}}}"): "/config/policy/preset'",
    cluster(f"name: a, {SECRET}, config: {{policy: {{hostPort: true}}}}"): "additional properties 'hostPort'",
    cluster(
        f"name: a, {SECRET}, config: {{policy: {{namespaces: {{ci: {{images: {{allow: all}}}}}}}}}}"
    ): "/config/policy/namespaces/ci/images/allow'",
    "descheduler: {policy: {kind: DeschedulerPolicy}}": "/descheduler/policy': missing property 'apiVersion'",
    f"descheduler: {{policy: {{{V1}, strategy: {{}}}}}}": "/descheduler/policy': additional properties 'strategy'",
    f"descheduler: {{policy: {{{V1}, strategies: {{PodLifetime: {{enabled: true}}}}}}}}": (
        "/descheduler/policy/strategies/PodLifetime/enabled'"
    ),
    f"descheduler: {{policy: {{{V1}, strategies: {{StaleCluster: {{enabled: true, params: {{burts: 1}}}}}}}}}}": (
        "/strategies/StaleCluster/params': additional properties 'burts'"
    ),
    f"descheduler: {{policy: {{{V2}, profiles: [{{plugins: {{balance: {{enabled: [PodLifeTme]}}}}}}]}}}}": (
        "/profiles/0/plugins/balance/enabled/0'"
    ),
    f"descheduler: {{policy: {{{V2}, profiles: [{{pluginConfig: [{{name: StaleCluster, args: {{burst: much}}}}]}}]}}}}": (
        "/profiles/0/pluginConfig/0/args/burst': got string, want integer"
    ),
    "multiScheduler: {agents: [{name: fit, config: {scores: Spread}}]}": (
        "/multiScheduler/agents/0/config': additional properties 'scores'"
    ),
    "multiScheduler: {agents: [{name: fit, config: {score: Best}}]}": "/multiScheduler/agents/0/config/score'",
    cluster(f"name: a, {SECRET}}}, {{name: a, {SECRET}"): "virtualNode.clusters: a name is there twice",
    cluster(
        f"name: a, {SECRET}}}, {{name: b, config: {{nodeName: a}}, {SECRET}"
    ): "a virtual node is there twice",
    f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{scheduler: {{name: default-scheduler}}}}": (
        "multiScheduler.scheduler.name: default-scheduler is the control plane's own"
    ),
}


def _merge(one: Values, other: Values) -> Values | None:
    """Return both values in one; None: both set the same field."""
    merged = {**one, **other}
    for key in one.keys() & other.keys():
        both = (one[key], other[key])
        part = _merge(*both) if all(isinstance(value, dict) for value in both) else None
        if part is None:
            return None
        merged[key] = part
    return merged


def _is_path(told: str) -> bool:
    """Report whether an error is the schema's and starts with the path of its field, so that no other has it."""
    return told.startswith("/")


def _together() -> list[tuple[Values, list[str]]]:
    """Return wrong values with their errors, in few groups: helm reports all errors of the schema in one run."""
    groups: list[tuple[Values, list[str]]] = []
    for text, told in WRONG.items():
        values = yaml.safe_load(text)
        for number, (others, errors) in enumerate(groups):
            is_apart = _is_path(told) and _is_path(errors[0]) and told not in errors
            merged = _merge(others, values) if is_apart else None
            if merged is not None:
                groups[number] = (merged, [*errors, told])
                break
        else:
            groups.append((values, [told]))
    return groups


@pytest.mark.parametrize(("wrong", "told"), some(_together(), 8))
def test_wrong_values_are_named(wrong: Values, told: list[str]):
    with pytest.raises(template.HelmError) as raised:
        template.template(yaml.safe_dump(wrong))
    assert [error for error in told if error not in str(raised.value)] == []


@pytest.mark.parametrize(
    "right",
    some(
        [
            "global: {imageRegistry: a, storageClass: b}",
            "global: null",
            "enabled: true",
            "virtualNode: {config: {kubelet: {anonymousAuth: true}, leaderElection: {leaseDuration: 30}}}",
            "virtualNode: {config: {pingInterval: 2.5, kubeApiBurst: 2000000, services: {always: []}, enableControllers: []}}",
            cluster(
                f"name: a, {SECRET}, config: {{labels: {{}}, capacity: {{reserve: {{cpu: 10%, memory: 4Gi}}}}}}"
            ),
            cluster(
                f"name: a, {SECRET}, config: {{clientQps: 1e3, port: null, taints: null, policy: {{hostPorts: null}}}}"
            ),
            cluster(
                f"name: a, {SECRET}, config: {{podSelector: {{matchExpressions: [{{key: a, operator: Exists}}]}}}}"
            ),
            "virtualNode: {hostNetwork: true, kubelet: {port: 10260}}",
            "virtualNode: {extraArgs: [--klog.v=4]}",
            "freezePeriod: 1h30m",
            "multiScheduler: {agents: [{name: fit, config: {score: Spread}}, {name: other, config: {any: 1}}]}",
            f"descheduler: {{policy: {{{V1}, strategies: {{HighNodeUtilization: {{enabled: false, params: {{a: 1}}}}}}}}}}",
            "webhook: {podDisruptionBudget: {maxUnavailable: 25%}}",
            "webhook: {topologySpreadConstraints: []}",
            "virtualNode: {resources: {}}",
            "virtualNode: {web: {enabled: false}, metrics: {port: 8090}}",
            "virtualNode: {enabled: false, metrics: {port: 8090}}",
            "webhook: {serviceAccount: {create: false, name: mine}}",
            kubelet("servingCertificate: CSR, approveServingCertificate: true"),
            cluster(f"name: {'c' * 50}, {SECRET}"),
            f"{cluster(f'name: a, {SECRET}')}\nmultiScheduler: {{scheduler: {{enabled: false, name: default-scheduler}}, tls: {{enabled: true}}}}",
        ],
        few=4,
    ),
)
def test_valid_values_are_accepted(right):
    """The schema is no stricter than the programs and Kubernetes are."""
    assert template.template(right)
