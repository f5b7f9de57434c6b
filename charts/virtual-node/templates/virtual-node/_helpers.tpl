{{/* Path of a lower cluster's kubeconfig in the pods that read it; called with the cluster's values. */}}
{{- define "virtual-node.kubeconfigPath" -}}
/etc/virtual-node/clusters/{{ .name }}/{{ ternary "kubeconfig" (dig "key" "kubeconfig" (.kubeconfigSecret | default dict)) (not (empty .kubeconfig)) }}
{{- end }}

{{/* Name of the Secret with a lower cluster's kubeconfig: (list $ $cluster) */}}
{{- define "virtual-node.kubeconfigSecretName" -}}
{{- $root := index . 0 }}{{ $cluster := index . 1 }}
{{- if $cluster.kubeconfig }}{{ include "virtual-node.fullname" $root }}-cluster-{{ $cluster.name }}
{{- else }}{{ required (printf "virtualNode.clusters[%s]: kubeconfig or kubeconfigSecret.name is required" $cluster.name) (dig "name" "" ($cluster.kubeconfigSecret | default dict)) }}
{{- end }}
{{- end }}

{{/* Names of the Secrets with tokens of a lower cluster that are renewed, as YAML list: the virtual node's Secret and the
read-only Secret. */}}
{{- define "virtual-node.tokenSecrets" -}}
{{- with .kubeconfigSecret }}
- {{ toYaml .name }}
- {{ include "virtual-node.viewerSecret" . | toYaml }}
{{- end }}
{{- end }}

{{/* Name of the Secret with a lower cluster's read-only kubeconfig; called with kubeconfigSecret. */}}
{{- define "virtual-node.viewerSecret" -}}
{{- .viewer | default (printf "%s-viewer" .name) }}
{{- end }}

{{/* Volumes with the kubeconfigs of the lower clusters for the extender. Keys of the read-only Secret replace the same keys of
the full Secret. Without a read-only Secret, the extender uses the full one. */}}
{{- define "virtual-node.viewerVolumes" -}}
{{- $root := . }}
{{- range .Values.virtualNode.clusters }}
- name: cluster-{{ .name }}
  projected:
    sources:
      - secret: {name: {{ include "virtual-node.kubeconfigSecretName" (list $root .) | toYaml }}}
      {{- with .kubeconfigSecret }}
      - secret: {name: {{ include "virtual-node.viewerSecret" . | toYaml }}, optional: true}
      {{- end }}
{{- end }}
{{- end }}

{{/* Volumes with the kubeconfigs of the lower clusters: (list $), or (list $ "optional") if the pod must start even if Secrets
are missing. */}}
{{- define "virtual-node.clusterVolumes" -}}
{{- $root := index . 0 }}{{ $optional := gt (len .) 1 }}
{{- range $root.Values.virtualNode.clusters }}
- name: cluster-{{ .name }}
  secret:
    secretName: {{ include "virtual-node.kubeconfigSecretName" (list $root .) | toYaml }}
    {{- if $optional }}
    optional: true
    {{- end }}
{{- end }}
{{- end }}

{{- define "virtual-node.clusterVolumeMounts" -}}
{{- range .Values.virtualNode.clusters }}
- name: cluster-{{ .name }}
  mountPath: /etc/virtual-node/clusters/{{ .name }}
  readOnly: true
{{- end }}
{{- end }}

{{/* Names of all virtual nodes, as YAML list. */}}
{{- define "virtual-node.nodeNames" -}}
{{- range .Values.virtualNode.clusters }}
{{- $config := .config | default dict }}
{{- if $config.nodes }}
{{- range $config.nodes }}
- {{ toYaml .name }}
{{- end }}
{{- else }}
- {{ toYaml ($config.nodeName | default .name) }}
{{- end }}
{{- end }}
{{- $profiles := .Values.virtualNode.clusterProfiles | default dict }}
{{- range $profiles.names }}
- {{ printf "%s%s" (include "virtual-node.profilePrefix" $) . | toYaml }}
{{- end }}
{{- end }}

{{- define "virtual-node.profilePrefix" -}}
{{ dig "namePrefix" "profile-" (.Values.virtualNode.clusterProfiles | default dict) }}
{{- end }}

{{/* "true" if ClusterProfiles of any name become virtual nodes. The names of these virtual nodes are not known here. */}}
{{- define "virtual-node.anyProfile" -}}
{{- with .Values.virtualNode.clusterProfiles }}{{ if not .names }}true{{ end }}{{ end }}
{{- end }}

{{/* clusterProfiles of a program's configuration, which reads the providers from the same ConfigMap. */}}
{{- define "virtual-node.profileConfig" -}}
{{- with .Values.virtualNode.clusterProfiles }}
{{- merge (dict "providersFile" "/etc/virtual-node/config/providers.yaml") (omit . "providers") | toYaml }}
{{- end }}
{{- end }}

{{/* Key of the ConfigMap with the credential plugins. */}}
{{- define "virtual-node.profileProviders" -}}
{{- with .Values.virtualNode.clusterProfiles }}
providers.yaml: |
  {{- pick . "providers" | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* Volume for the kubeconfigs that a program writes for ClusterProfiles, and for temporary files of credential plugins. */}}
{{- define "virtual-node.profileVolume" -}}
{{- if .Values.virtualNode.clusterProfiles }}
- name: profiles
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
{{- end }}
{{- end }}

{{- define "virtual-node.profileVolumeMount" -}}
{{- if .Values.virtualNode.clusterProfiles }}
- {name: profiles, mountPath: /tmp}
{{- end }}
{{- end }}

{{/* Number of ports from kubelet.port on that virtual nodes may use. */}}
{{- define "virtual-node.kubeletPortCount" -}}
{{- $count := include "virtual-node.nodeNames" . | fromYamlArray | len }}
{{- if include "virtual-node.anyProfile" . }}{{ $count = add $count 100 }}{{ end }}
{{- max 1 $count }}
{{- end }}

{{/* Ports of the kubelet APIs, as YAML list: ports configured for single virtual nodes, and the ports that the other virtual
nodes may use. */}}
{{- define "virtual-node.kubeletPorts" -}}
{{- $ports := list }}
{{- $first := int .Values.virtualNode.kubelet.port }}
{{- $count := include "virtual-node.kubeletPortCount" . }}
{{- /* A virtual node that moves to another worker needs a new port while the old one still accepts streams. */}}
{{- if gt (int (dig "workers" 1 (.Values.virtualNode.config | default dict))) 1 }}{{ $count = mul 2 $count }}{{ end }}
{{- range untilStep $first (int (add $first $count)) 1 }}{{ $ports = append $ports . }}{{ end }}
{{- range .Values.virtualNode.clusters }}
{{- $config := .config | default dict }}
{{- range $config.nodes | default (list $config) }}
{{- if hasKey . "port" }}{{ $ports = append $ports (int .port) }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml ($ports | uniq) }}
{{- end }}

{{/* "true" if inspections are scheduled. */}}
{{- define "virtual-node.inspection" -}}
{{- if and .Values.inspection.enabled .Values.virtualNode.enabled }}true{{ end }}
{{- end }}

{{/* "yes" if ResourceClaims follow pods to a lower cluster. */}}
{{- define "virtual-node.resourceClaims" -}}
{{- if dig "defaults" "resourceClaims" "enabled" false (.Values.virtualNode.clusterProfiles | default dict) }}yes{{ end }}
{{- range .Values.virtualNode.clusters }}{{ if dig "resourceClaims" "enabled" false (.config | default dict) }}yes{{ end }}{{ end }}
{{- end }}

{{/* Whether pods of a virtual node share tokens that are bound to the Node. */}}
{{- define "virtual-node.sharedTokens" -}}
{{- if eq (dig "identities" "tokens" "pod" (.Values.virtualNode.config | default dict)) "node" }}yes{{ end }}
{{- end }}

{{/* Configuration of the process. A change needs a new pod, but a change of the clusters is applied without a restart. */}}
{{- define "virtual-node.processConfig" -}}
{{- $values := .Values.virtualNode }}
{{- $kubelet := dict "port" (int $values.kubelet.port) "drainTimeout" (float64 $values.kubelet.drainTimeout) "servingCertificate" $values.kubelet.servingCertificate }}
{{- if $values.kubelet.approveServingCertificate }}
{{- $_ := set $kubelet "approveServingCertificate" true }}
{{- end }}
{{- if eq $values.kubelet.servingCertificate "Files" }}
{{- $_ := required "virtualNode.kubelet.servingSecret: required, because servingCertificate is Files" $values.kubelet.servingSecret }}
{{- $_ := set $kubelet "tlsCertFile" "/etc/virtual-node/serving/tls.crt" }}
{{- $_ := set $kubelet "tlsPrivateKeyFile" "/etc/virtual-node/serving/tls.key" }}
{{- end }}
{{- $config := set (include "virtual-node.sharedConfig" . | fromYaml) "kubelet" $kubelet }}
{{- /* Also with one replica, because two pods run during an upgrade. */}}
{{- $_ := set $config "leaderElection" (dict "enabled" true "namespace" .Release.Namespace "name" (include "virtual-node.fullname" .)) }}
{{- if ne $values.mode "Standby" }}{{ $_ := set $config.leaderElection "mode" $values.mode }}{{ end }}
{{- if $values.web.enabled }}
{{- $_ := set $config "webAddress" (printf "127.0.0.1:%d" (int $values.web.port)) }}
{{- end }}
{{- if include "virtual-node.inspection" . }}
{{- $_ := set $config "inspectionHistory" (printf "%s/%s" .Release.Namespace (include "virtual-node.component" (list . "inspection"))) }}
{{- end }}
{{- with .Values.clusterId }}
{{- $_ := set $config "clusterID" . }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy ($values.config | default dict))) }}
{{- end }}
