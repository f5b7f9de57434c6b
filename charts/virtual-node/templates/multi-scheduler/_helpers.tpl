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

{{/* Configuration of the extender and of the annotator: (list $ $usage $clusterUsage $hasProfiles). */}}
{{- define "virtual-node.extenderConfig" -}}
{{- $root := index . 0 }}{{ $usage := index . 1 }}{{ $clusterUsage := index . 2 | default dict }}
{{- $ofProcess := pick ($root.Values.virtualNode.config | default dict) "enableControllers" -}}
apiVersion: virtual-node.io/v1alpha1
kind: MultiSchedulerConfiguration
agents:
  {{- toYaml $root.Values.multiScheduler.agents | nindent 2 }}
{{- if ne $root.Values.multiScheduler.unknownNodes "Reject" }}
unknownNodes: {{ $root.Values.multiScheduler.unknownNodes }}
{{- end }}
{{- with $usage }}
usage:
  {{- toYaml . | nindent 2 }}
{{- end }}
clusters:
  {{- range $root.Values.virtualNode.clusters }}
  {{- $config := .config | default dict }}
  - name: {{ toYaml .name }}
    kubeconfig: {{ include "virtual-node.kubeconfigPath" . }}
    {{- with get $clusterUsage .name | default $config.usage }}
    usage:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with pick $config "context" "server" }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with pick ($config.namespaces | default dict) "prefix" "map" "allowed" "adopt" }}
    namespaces:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $config.podSelector }}
    podSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with pick ($config.volumes | default dict) "allowedHostPaths" }}
    volumes:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $config.resourceClaims }}
    resourceClaims:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with merge (pick $config "enableControllers") $ofProcess }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $config.policy }}
    policy:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $config.overrides }}
    overrides:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    nodes:
      {{- if $config.nodes }}
      {{- range $config.nodes }}
      - name: {{ toYaml .name }}
        {{- with pick . "nodeSelector" "autoscaling" }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- else }}
      - name: {{ toYaml ($config.nodeName | default .name) }}
        {{- with pick $config "nodeSelector" "autoscaling" }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
  {{- else }} []
  {{- end }}
{{- $profiles := include "virtual-node.profileConfig" $root | fromYaml }}
{{- if and $profiles (index . 3) }}
{{- $defaults := $profiles.defaults | default dict }}
{{- $used := merge (pick $defaults "enableControllers" "usage" "podSelector" "resourceClaims" "policy" "overrides" "nodeSelector" "autoscaling") $ofProcess }}
{{- with pick ($defaults.namespaces | default dict) "prefix" "map" "allowed" "adopt" }}{{ $_ := set $used "namespaces" . }}{{ end }}
{{- with pick ($defaults.volumes | default dict) "allowedHostPaths" }}{{ $_ := set $used "volumes" . }}{{ end }}
clusterProfiles:
  {{- toYaml (merge (dict "defaults" $used) (omit $profiles "defaults")) | nindent 2 }}
{{- end }}
{{- end }}

{{/* Same as multi_scheduler/scheduler_configuration.py; a test compares them. */}}
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
