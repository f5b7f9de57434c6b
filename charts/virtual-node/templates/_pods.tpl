{{/* Parts of pods and workloads that all components share. */}}

{{/* Image reference from a map with registry, repository, tag and digest: (list $ .Values.image "default tag") */}}
{{- define "virtual-node.imageName" -}}
{{- $image := index . 1 -}}
{{- with dig "imageRegistry" "" ((index . 0).Values.global | default dict) | default $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 2) }}{{ end }}
{{- end }}

{{/* By default Pod Security Standard "restricted": https://kubernetes.io/docs/concepts/security/pod-security-standards/
OpenShift's default SecurityContextConstraints refuse IDs outside the range of the namespace, and set missing ones. */}}
{{- define "virtual-node.podSecurityContext" -}}
{{- $context := dict -}}
{{- $ids := ternary (list "runAsUser" "runAsGroup" "fsGroup") list (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}
{{- range $field, $value := .Values.podSecurityContext -}}
{{- if not (or (kindIs "invalid" $value) (and (has $field $ids) (eq (toString $value) "65532"))) -}}
{{- $_ := set $context $field $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $context }}
{{- end }}

{{- define "virtual-node.securityContext" -}}
{{- toYaml .Values.containerSecurityContext }}
{{- end }}

{{/* Pod spec fields that all pods of a component have: (list $ "webhook" .Values.webhook) */}}
{{- define "virtual-node.podSpec" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
serviceAccountName: {{ include "virtual-node.serviceAccountName" . | toYaml }}
automountServiceAccountToken: true
{{- if $values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext:
  {{- include "virtual-node.podSecurityContext" $root | nindent 2 }}
{{- $secrets := $root.Values.imagePullSecrets | default list }}
{{- range dig "imagePullSecrets" list ($root.Values.global | default dict) | default list }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClass.name | default (and $root.Values.priorityClass.create (include "virtual-node.clusterName" (list $root "virtual-node"))) }}
priorityClassName: {{ toYaml . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if $values.affinity }}
  {{- toYaml $values.affinity | nindent 2 }}
  {{- else }}
  # Not on a virtual node, because virtual nodes need this component to work.
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: type, operator: NotIn, values: [virtual-kubelet]}
  {{- end }}
{{- /* Without a selector, a constraint counts no pods and has no effect. */}}
{{- $selector := dict "matchLabels" (include "virtual-node.selectorLabels" . | fromYaml) }}
{{- $constraints := list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") }}
{{- if kindIs "slice" $values.topologySpreadConstraints }}{{ $constraints = $values.topologySpreadConstraints }}{{ end }}
{{- with $constraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $given := kindIs "map" .labelSelector | ternary .labelSelector $selector }}
  - {{ set (deepCopy .) "labelSelector" $given | toYaml | indent 4 | trim }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Pod spec fields of a hook's pod: (list $ "uninstall"). It may run on the same nodes as pods of the virtual node. */}}
{{- define "virtual-node.hookPodSpec" -}}
{{- $own := dict "serviceAccount" (dict "create" true "name" "") "topologySpreadConstraints" list -}}
{{ include "virtual-node.podSpec" (append . (merge $own (omit (index . 0).Values.virtualNode "serviceAccount" "topologySpreadConstraints" "hostNetwork"))) }}
restartPolicy: Never
{{- end }}

{{/* Labels and annotations of a component's pods: (list $ "webhook" .Values.webhook [$checksums] [$defaults]). Annotations of
the user override defaults, but not checksums. */}}
{{- define "virtual-node.podMetadata" -}}
{{- $root := index . 0 }}{{ $values := index . 2 }}{{ $own := dict }}{{ $defaults := dict }}
{{- if gt (len .) 3 }}{{ $own = index . 3 }}{{ end }}
{{- if gt (len .) 4 }}{{ $defaults = index . 4 }}{{ end -}}
labels:
  {{- /* Without the chart version, so that a new chart version alone does not restart pods. */}}
  {{- omit (include "virtual-node.labels" (list $root (index . 1) $values.podLabels) | fromYaml) "helm.sh/chart" | toYaml | nindent 2 }}
{{- with merge (dict) $own ($values.podAnnotations | default dict) $defaults }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Update strategy of a Deployment; called with the component's values. */}}
{{- define "virtual-node.strategy" -}}
{{- $strategy := .updateStrategy | default dict -}}
{{- /* Helm merges maps, so rollingUpdate of the default values would remain and be invalid with Recreate. */}}
{{- if eq ($strategy.type | default "") "Recreate" }}{{ $strategy = pick $strategy "type" }}
{{- /* Explicit defaults. Fields that the API server defaults have no field manager, so they would remain when Recreate is
applied. */}}
{{- else if not $strategy.rollingUpdate }}
{{- $strategy = dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" "25%" "maxUnavailable" "25%") }}
{{- end -}}
strategy:
  {{- toYaml $strategy | nindent 2 }}
{{- end }}

{{- define "virtual-node.container" -}}
image: {{ include "virtual-node.imageName" (list . .Values.image .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "virtual-node.securityContext" . | nindent 2 }}
{{- end }}

{{/* Environment variables from fields of the pod: (list .Values.webhook.extraEnv (list "NAME" "field") ...). A variable of the
user replaces the chart's, because server-side apply rejects duplicate names. */}}
{{- define "virtual-node.env" -}}
{{- $given := first . | default list }}{{ $names := list }}
{{- range $given }}{{ $names = append $names .name }}{{ end }}
{{- $all := list }}
{{- range rest . }}
{{- if not (has (first .) $names) }}
{{- $all = append $all (dict "name" (first .) "valueFrom" (dict "fieldRef" (dict "apiVersion" "v1" "fieldPath" (last .)))) }}
{{- end }}
{{- end }}
{{- toYaml (concat $all $given) }}
{{- end }}

{{/* Probes of the health endpoints: (list $ "port name" ["HTTPS"]) */}}
{{- define "virtual-node.probes" -}}
{{- $port := index . 1 }}{{ $scheme := "HTTP" }}{{ if gt (len .) 2 }}{{ $scheme = index . 2 }}{{ end -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}

{{- define "virtual-node.podDisruptionBudget" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
{{- if and $values.podDisruptionBudget.enabled (gt (int $values.replicas) 1) }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "virtual-node.metadata" (list $root $component) | nindent 2 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  {{- if semverCompare ">=1.27.0-0" $root.Capabilities.KubeVersion.Version }}
  # Pods that are not ready do not block a node drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  {{- end }}
  selector:
    matchLabels:
      {{- include "virtual-node.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end }}
