{{/* The configuration file that all programs read. Each program ignores the settings of the others. */}}

{{/* Component that the ConfigMap with the file is named after. The files in hack/ for single components need different names. */}}
{{- define "virtual-node.configComponent" -}}
{{- if .Values.virtualNode.enabled }}virtual-node
{{- else if include "virtual-node.multiScheduler" . }}multi-scheduler
{{- else if include "virtual-node.annotator" . }}annotator{{ end }}
{{- end }}

{{/* The same for the annotator. It reads a file of its own if it has its own usage, because the extender may read what the
annotator writes, and if ClusterProfiles may have any name, because it may not patch their virtual nodes. */}}
{{- define "virtual-node.annotatorConfigComponent" -}}
{{- if or .Values.annotator.usage (include "virtual-node.anyProfile" .) }}annotator{{ else }}{{ include "virtual-node.configComponent" . }}{{ end }}
{{- end }}

{{/* Content of the file: (list $ "component that the ConfigMap is named after") */}}
{{- define "virtual-node.config" -}}
{{- $root := index . 0 }}{{ $isAnnotator := eq (index . 1) "annotator" }}
{{- $scheduler := $root.Values.multiScheduler }}
{{- $config := dict }}
{{- if eq (index . 1) "virtual-node" }}{{ $config = include "virtual-node.processConfig" $root | fromYaml }}
{{- else }}{{ $config = include "virtual-node.sharedConfig" $root | fromYaml }}{{ end }}
{{- if and $isAnnotator (include "virtual-node.anyProfile" $root) }}{{ $config = omit $config "clusterProfiles" }}{{ end }}
{{- $usage := $scheduler.usage }}{{ $clusterUsage := $scheduler.clusterUsage | default dict }}
{{- if and $isAnnotator $root.Values.annotator.usage }}{{ $usage = $root.Values.annotator.usage }}{{ $clusterUsage = dict }}{{ end }}
{{- if or (include "virtual-node.multiScheduler" $root) (include "virtual-node.annotator" $root) }}
{{- $config = merge $config (dict "agents" $scheduler.agents "unknownNodes" $scheduler.unknownNodes) }}
{{- with $usage }}{{ $_ := set $config "usage" . }}{{ end }}
{{- with and (not $isAnnotator) $scheduler.upperUsage }}{{ $_ := set $config "upperUsage" . }}{{ end }}
{{- end }}
{{- $clusters := list }}
{{- range $root.Values.virtualNode.clusters }}
{{- $cluster := dict "name" .name "kubeconfig" (include "virtual-node.kubeconfigPath" .) }}
{{- $tokens := list }}
{{- range include "virtual-node.tokenSecrets" . | fromYamlArray }}{{ $tokens = append $tokens (dict "namespace" $root.Release.Namespace "name" .) }}{{ end }}
{{- if $tokens }}{{ $_ := set $cluster "tokenSecrets" $tokens }}{{ end }}
{{- $cluster = mergeOverwrite $cluster (deepCopy (.config | default dict)) }}
{{- if and $isAnnotator $root.Values.annotator.usage }}{{ $_ := unset $cluster "usage" }}{{ end }}
{{- with get $clusterUsage .name }}{{ $_ := set $cluster "usage" . }}{{ end }}
{{- $clusters = append $clusters $cluster }}
{{- end }}
{{- toYaml (set $config "clusters" $clusters) }}
{{- end }}

{{/* The settings of the whole set of lower clusters that are not settings of one program. */}}
{{- define "virtual-node.sharedConfig" -}}
{{- $config := pick (.Values.virtualNode.config | default dict) "enableControllers" "ignoreLabels" "ignore" }}
{{- with include "virtual-node.profileConfig" . | fromYaml }}{{ $_ := set $config "clusterProfiles" . }}{{ end }}
{{- toYaml (merge (dict "apiVersion" "virtual-node.io/v1alpha1" "kind" "ClusterSetConfiguration") $config) }}
{{- end }}

{{/* Checksum of the file for a program that does not apply its changes: (list $ "component that the ConfigMap is named after"
"ignored field"...). It does not cover settings that only the virtual node uses, so that their changes do not restart the
program. */}}
{{- define "virtual-node.configChecksum" -}}
{{- $config := include "virtual-node.config" . | fromYaml }}
{{- $used := pick $config "agents" "unknownNodes" "usage" "upperUsage" "enableControllers" "ignoreLabels" "ignore" }}
{{- range slice . 2 }}{{ $_ := unset $used . }}{{ end }}
{{- $clusters := list }}
{{- range $config.clusters }}{{ $clusters = append $clusters (include "virtual-node.usedFields" . | fromJson) }}{{ end }}
{{- with $config.clusterProfiles }}
{{- $_ := set $used "clusterProfiles" (set . "defaults" (include "virtual-node.usedFields" .defaults | fromJson)) }}
{{- end }}
{{- toJson (set $used "clusters" $clusters) | sha256sum }}
{{- end }}

{{/* Fields of a lower cluster, or of the defaults of ClusterProfiles, that not only the virtual node uses. */}}
{{- define "virtual-node.usedFields" -}}
{{- $own := list "labels" "taints" "capacity" "port" "tokenSecrets" "services" "follow" "ingressClasses" "gatewayClasses" "onUnschedulable" "unreachable" "clientQPS" "clientQps" "clientBurst" }}
{{- $cluster := deepCopy (. | default dict) }}
{{- range $map := append ($cluster.nodes | default list) $cluster }}{{ range $own }}{{ $_ := unset $map . }}{{ end }}{{ end }}
{{- $_ := set $cluster "volumes" (pick ($cluster.volumes | default dict) "allowedHostPaths") }}
{{- toJson $cluster }}
{{- end }}
