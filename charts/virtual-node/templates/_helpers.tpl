{{/* Names, labels, and what the pods of all components share. */}}

{{- define "virtual-node.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "virtual-node.fullname" -}}
{{- $full := .Values.fullnameOverride }}
{{- if not $full }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- /* A release may have dots in its name, a Service may not. */}}
{{- $full = .Release.Name | replace "." "-" }}
{{- if not (contains $name $full) }}{{ $full = printf "%s-%s" $full $name }}{{ end }}
{{- end }}
{{- /* Nor may a Service's name begin with a digit. */}}
{{- if regexMatch "^[0-9]" $full }}{{ $full = printf "vn-%s" $full }}{{ end }}
{{- $full | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of a component's objects; called with (list $ "webhook"). The virtual node's own is the plain one. */}}
{{- define "virtual-node.component" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}
{{- if eq $component "virtual-node" }}{{ include "virtual-node.fullname" $root }}
{{- else }}{{ include "virtual-node.fullname" $root }}-{{ $component }}{{ end }}
{{- end }}

{{- define "virtual-node.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "virtual-node.name" $root | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* What no user's label may replace. */}}
{{- define "virtual-node.ownLabels" -}}
{{- $root := index . 0 -}}
{{ include "virtual-node.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: virtual-node
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* All labels, each once: (list $ "webhook" [dict of further ones]) */}}
{{- define "virtual-node.labels" -}}
{{- $root := index . 0 }}{{ $more := dict }}{{ if gt (len .) 2 }}{{ $more = index . 2 }}{{ end -}}
{{- toYaml (merge (include "virtual-node.ownLabels" . | fromYaml) $more $root.Values.commonLabels) }}
{{- end }}

{{/* Labels and annotations of an object: (list $ "webhook" [dict of annotations] [dict of labels]) */}}
{{- define "virtual-node.marks" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $annotations := dict }}{{ $labels := dict }}
{{- if gt (len .) 2 }}{{ $annotations = index . 2 }}{{ end }}
{{- if gt (len .) 3 }}{{ $labels = index . 3 }}{{ end -}}
labels:
  {{- include "virtual-node.labels" (list $root $component $labels) | nindent 2 }}
{{- with merge (dict) $annotations $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Metadata of a component's object: (list $ "webhook" ["suffix"]) */}}
{{- define "virtual-node.metadata" -}}
{{- $root := index . 0 }}{{ $component := index . 1 -}}
name: {{ include "virtual-node.component" . }}{{ if gt (len .) 2 }}-{{ index . 2 }}{{ end }}
namespace: {{ toYaml $root.Release.Namespace }}
{{ include "virtual-node.marks" (list $root $component) }}
{{- end }}

{{- define "virtual-node.clusterMetadata" -}}
name: {{ include "virtual-node.clusterName" . }}
{{ include "virtual-node.marks" (list (index . 0) (index . 1)) }}
{{- end }}

{{/* Objects of the whole cluster carry the namespace, too: two releases do not meet. */}}
{{- define "virtual-node.clusterName" -}}
{{- $root := index . 0 -}}
{{ $root.Release.Namespace }}-{{ include "virtual-node.component" . }}
{{- end }}

{{- define "virtual-node.image" -}}
{{- $image := .Values.image -}}
{{- if $image.registry }}{{ $image.registry }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* (list $ "webhook" .Values.webhook) */}}
{{- define "virtual-node.serviceAccountName" -}}
{{- $values := index . 2 -}}
{{- if $values.serviceAccount.create }}
{{- default (include "virtual-node.component" .) $values.serviceAccount.name }}
{{- else }}
{{- required (printf "%s.serviceAccount.name: required, because serviceAccount.create is false" (index . 1)) $values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "virtual-node.serviceAccount" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
{{- if $values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "virtual-node.serviceAccountName" . | toYaml }}
  namespace: {{ toYaml $root.Release.Namespace }}
  {{- include "virtual-node.marks" (list $root (index . 1) $values.serviceAccount.annotations) | nindent 2 }}
{{- end }}
{{- end }}

{{/* Restricted Pod Security: https://kubernetes.io/docs/concepts/security/pod-security-standards/ */}}
{{- define "virtual-node.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "virtual-node.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What the pods of a component have in common: (list $ "webhook" .Values.webhook) */}}
{{- define "virtual-node.podSpec" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 -}}
serviceAccountName: {{ include "virtual-node.serviceAccountName" . | toYaml }}
securityContext:
  {{- include "virtual-node.podSecurityContext" $root | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClass.name | default (ternary (include "virtual-node.clusterName" (list $root "virtual-node")) "" $root.Values.priorityClass.create) }}
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
  # Never on a virtual node: what keeps them alive must not depend on them.
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: type, operator: NotIn, values: [virtual-kubelet]}
  {{- end }}
{{- if kindIs "slice" $values.topologySpreadConstraints }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- else }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "virtual-node.selectorLabels" . | nindent 8 }}
{{- end }}
{{- end }}

{{/* Labels of a component's pods: (list $ "webhook" .Values.webhook) */}}
{{- define "virtual-node.podMetadata" -}}
{{- $root := index . 0 }}{{ $values := index . 2 -}}
labels:
  {{- include "virtual-node.labels" (list $root (index . 1) $values.podLabels) | nindent 2 }}
{{- end }}

{{- define "virtual-node.container" -}}
image: {{ include "virtual-node.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "virtual-node.securityContext" . | nindent 2 }}
{{- end }}

{{/* Named port and probes of the health endpoints; (list $ "metrics") */}}
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
  selector:
    matchLabels:
      {{- include "virtual-node.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* RBAC of a component, from files/rights.yaml: (list $ "webhook" .Values.webhook (list "upper") (list extra rules)) */}}
{{- define "virtual-node.rbac" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 }}{{ $sets := index . 3 }}{{ $extra := index . 4 }}
{{- if $root.Values.rbac.create }}
{{- $table := get ($root.Files.Get "files/rights.yaml" | fromYaml) (camelcase (replace "-" "_" $component) | untitle) }}
{{- $found := dict }}
{{- range $sets }}
{{- range $namespace, $rules := get $table . }}
{{- $_ := set $found $namespace (concat (get $found $namespace | default list) $rules) }}
{{- end }}
{{- end }}
{{- $_ := set $found "<cluster>" (concat (get $found "<cluster>" | default list) $extra) }}
{{- $account := include "virtual-node.serviceAccountName" (list $root $component $values) }}
{{- range $namespace, $rules := $found }}
{{- if eq $namespace "<cluster>" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "virtual-node.clusterMetadata" (list $root $component) | nindent 2 }}
rules:
  {{- toYaml $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "virtual-node.clusterMetadata" (list $root $component) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "virtual-node.clusterName" (list $root $component) }}
subjects:
  - {kind: ServiceAccount, name: {{ toYaml $account }}, namespace: {{ toYaml $root.Release.Namespace }}}
{{- else }}
{{- $own := eq $namespace "<own>" }}
{{- $name := ternary (include "virtual-node.component" (list $root $component)) (include "virtual-node.clusterName" (list $root $component)) $own }}
{{- $where := ternary $root.Release.Namespace $namespace $own }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ toYaml $where }}
  {{- include "virtual-node.marks" (list $root $component) | nindent 2 }}
rules:
  {{- toYaml $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ toYaml $where }}
  {{- include "virtual-node.marks" (list $root $component) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - {kind: ServiceAccount, name: {{ toYaml $account }}, namespace: {{ toYaml $root.Release.Namespace }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
