{{/* Schedulers and virtual nodes that an upgrade removes while pods may still need them. NOTES.txt reports them.
`lookup` reads the state before the upgrade. The lists are empty without a cluster, as in `helm template`. */}}

{{/* Names of removed schedulers that pending pods may request, as YAML list. */}}
{{- define "virtual-node.goneSchedulers" -}}
{{- $name := include "virtual-node.component" (list . "scheduler") }}
{{- $now := "" }}
{{- if and (include "virtual-node.multiScheduler" .) .Values.multiScheduler.scheduler.enabled }}
{{- $now = .Values.multiScheduler.scheduler.name }}
{{- end }}
{{- if and .Release.IsUpgrade (lookup "apps/v1" "Deployment" .Release.Namespace $name) }}
{{- $config := dig "data" "scheduler.yaml" "" (lookup "v1" "ConfigMap" .Release.Namespace $name) | fromYaml }}
{{- range $config.profiles }}
{{- if ne .schedulerName $now }}
- {{ toYaml .schedulerName }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names of removed virtual nodes that may still have pods, as YAML list. */}}
{{- define "virtual-node.goneNodes" -}}
{{- $now := list }}
{{- if .Values.virtualNode.enabled }}{{ $now = include "virtual-node.nodeNames" . | fromYamlArray }}{{ end }}
{{- if .Release.IsUpgrade }}
{{- $name := include "virtual-node.component" (list . "virtual-node") }}
{{- $config := dig "data" "virtual-node.yaml" "" (lookup "v1" "ConfigMap" .Release.Namespace $name) | fromYaml }}
{{- range $config.clusters }}
{{- range .nodes | default (list (dict "name" (.nodeName | default .name))) }}
{{- if not (has .name $now) }}
- {{ toYaml .name }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names of virtual nodes that exist in the cluster and that the descheduler has no right to taint, as YAML list. */}}
{{- define "virtual-node.foreignNodes" -}}
{{- $known := concat (include "virtual-node.nodeNames" . | fromYamlArray) (.Values.descheduler.virtualNodes | default list) }}
{{- if .Values.descheduler.enabled }}
{{- range (lookup "v1" "Node" "" "").items }}
{{- if and (eq (dig "labels" "type" "" .metadata) "virtual-kubelet") (not (has .metadata.name $known)) }}
- {{ toYaml .metadata.name }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
