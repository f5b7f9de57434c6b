{{/* "true" if the multi-scheduler is installed. The extender needs at least one lower cluster, or ClusterProfiles. */}}
{{- define "virtual-node.multiScheduler" -}}
{{- if and .Values.multiScheduler.enabled (or .Values.virtualNode.clusters .Values.virtualNode.clusterProfiles) }}true{{ end }}
{{- end }}

{{/* "true" if the annotator is installed. It reads the same lower clusters as the extender. */}}
{{- define "virtual-node.annotator" -}}
{{- if and .Values.annotator.enabled (or .Values.virtualNode.clusters (include "virtual-node.annotatorProfiles" .)) }}true{{ end }}
{{- end }}

{{/* "true" if the annotator also reads the clusters of ClusterProfiles. It may patch only virtual nodes with known names. */}}
{{- define "virtual-node.annotatorProfiles" -}}
{{- if and .Values.virtualNode.clusterProfiles (not (include "virtual-node.anyProfile" .)) }}true{{ end }}
{{- end }}

{{/* "true" if scheduler and extender authenticate each other with certificates. */}}
{{- define "virtual-node.extenderTls" -}}
{{- if ne (toString .Values.multiScheduler.tls.enabled) "false" }}true{{ end }}
{{- end }}

{{/* "true" if the extender generates the certificates. */}}
{{- define "virtual-node.extenderOwnTls" -}}
{{- if and (include "virtual-node.multiScheduler" .) (include "virtual-node.extenderTls" .) (not .Values.multiScheduler.tls.secretName) }}true{{ end }}
{{- end }}

{{/* Names of the Secrets with the certificates that the extender generates, for itself and for the scheduler. */}}
{{- define "virtual-node.extenderSecret" -}}
{{ include "virtual-node.component" (list . "multi-scheduler") }}-tls
{{- end }}
{{- define "virtual-node.schedulerSecret" -}}
{{ include "virtual-node.component" (list . "scheduler") }}-tls
{{- end }}

{{/* Same as multi_scheduler/print_configuration.py; a test compares them. */}}
{{- define "virtual-node.schedulerConfig" -}}
{{- $values := .Values.multiScheduler -}}
apiVersion: kubescheduler.config.k8s.io/{{ ternary "v1" "v1beta3" (semverCompare ">=1.25.0-0" .Capabilities.KubeVersion.Version) }}
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ toYaml .Release.Namespace }}
  resourceName: {{ include "virtual-node.component" (list . "scheduler") }}
profiles:
  - schedulerName: {{ toYaml $values.scheduler.name }}
extenders:
  {{- $tls := include "virtual-node.extenderTls" . }}
  - urlPrefix: {{ ternary "https" "http" (not (empty $tls)) }}://{{ include "virtual-node.component" (list . "multi-scheduler") }}.{{ .Release.Namespace }}.svc:{{ $values.port }}
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    {{- if $values.bind }}
    bindVerb: bind
    {{- end }}
    weight: {{ $values.weight }}
    enableHTTPS: {{ not (empty $tls) }}
    {{- if $tls }}
    tlsConfig:
      certFile: /etc/virtual-node/extender/tls.crt
      keyFile: /etc/virtual-node/extender/tls.key
      caFile: /etc/virtual-node/extender/ca.crt
    {{- end }}
    nodeCacheCapable: true
    ignorable: false
    httpTimeout: 10s
{{- end }}
