{{/* Names, labels and annotations. */}}

{{- define "virtual-node.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "virtual-node.fullname" -}}
{{- $full := .Values.fullnameOverride }}
{{- if not $full }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- /* The name of a release may contain dots, the name of a Service may not. */}}
{{- $full = .Release.Name | replace "." "-" }}
{{- if not (contains $name $full) }}{{ $full = printf "%s-%s" $full $name }}{{ end }}
{{- end }}
{{- /* The name of a Service may not begin with a digit. */}}
{{- if regexMatch "^[0-9]" $full }}{{ $full = printf "vn-%s" $full }}{{ end }}
{{- $full | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Name of a component's objects: (list $ "webhook"). Objects of the virtual node have the full name without a suffix. */}}
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

{{/* A version as the value of a label. Flux appends "+DIGEST" to the version of a chart. */}}
{{- define "virtual-node.labelValue" -}}
{{- . | replace "+" "_" | trunc 63 | regexFind "^.*[A-Za-z0-9]" }}
{{- end }}

{{/* Labels that users cannot override. */}}
{{- define "virtual-node.ownLabels" -}}
{{- $root := index . 0 -}}
{{ include "virtual-node.selectorLabels" . }}
app.kubernetes.io/version: {{ include "virtual-node.labelValue" $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: virtual-node
helm.sh/chart: {{ include "virtual-node.labelValue" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) | quote }}
{{- end }}

{{/* All labels without duplicate keys: (list $ "webhook" [dict of additional labels]) */}}
{{- define "virtual-node.labels" -}}
{{- $root := index . 0 }}{{ $more := dict }}{{ if gt (len .) 2 }}{{ $more = index . 2 }}{{ end -}}
{{- toYaml (merge (include "virtual-node.ownLabels" . | fromYaml) ($more | default dict) ($root.Values.commonLabels | default dict)) }}
{{- end }}

{{/* Labels and annotations of an object: (list $ "webhook" [dict of annotations] [dict of labels]) */}}
{{- define "virtual-node.marks" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $annotations := dict }}{{ $labels := dict }}
{{- if gt (len .) 2 }}{{ $annotations = index . 2 }}{{ end }}
{{- if gt (len .) 3 }}{{ $labels = index . 3 }}{{ end -}}
labels:
  {{- include "virtual-node.labels" (list $root $component $labels) | nindent 2 }}
{{- with merge (dict) ($annotations | default dict) ($root.Values.commonAnnotations | default dict) }}
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

{{/* Name of a cluster-scoped object. It contains the namespace, so that two releases have different names. Neither part
contains a dot. */}}
{{- define "virtual-node.clusterName" -}}
{{- $root := index . 0 -}}
{{ $root.Release.Namespace }}.{{ include "virtual-node.component" . }}
{{- end }}

{{/* Name of the Secret with the certificates that the webhook generates. */}}
{{- define "virtual-node.webhookSecret" -}}
{{ include "virtual-node.component" (list . "webhook") }}-tls
{{- end }}

{{/* "true" if this release may create an object or already owns it: (list $ "v1" "Secret" "namespace" "name"). Helm refuses to
adopt an existing object of another release, or one that a program of an earlier version created. */}}
{{- define "virtual-node.mayMake" -}}
{{- $root := index . 0 }}
{{- $there := lookup (index . 1) (index . 2) (index . 3) (index . 4) }}
{{- $annotations := dig "metadata" "annotations" dict ($there | default dict) }}
{{- $release := list (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") }}
{{- if or (not $there) (eq (toJson $release) (toJson (list $root.Release.Namespace $root.Release.Name))) }}true{{ end }}
{{- end }}
