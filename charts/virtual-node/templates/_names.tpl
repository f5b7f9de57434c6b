{{/* Names, labels and annotations. */}}

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

{{/* Objects of the whole cluster carry the namespace, too: two releases do not meet. Neither part has a dot in it. */}}
{{- define "virtual-node.clusterName" -}}
{{- $root := index . 0 -}}
{{ $root.Release.Namespace }}.{{ include "virtual-node.component" . }}
{{- end }}

{{/* The Secret with the certificates that the webhook makes itself. */}}
{{- define "virtual-node.webhookSecret" -}}
{{ include "virtual-node.component" (list . "webhook") }}-tls
{{- end }}

{{/* Whether this release may have an object: (list $ "v1" "Secret" "namespace" "name"). Helm refuses to take over one that
it has not made: of an earlier version, whose programs made it, or of another release. */}}
{{- define "virtual-node.mayMake" -}}
{{- $root := index . 0 }}
{{- $there := lookup (index . 1) (index . 2) (index . 3) (index . 4) }}
{{- $annotations := dig "metadata" "annotations" dict ($there | default dict) }}
{{- $release := list (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") }}
{{- if or (not $there) (eq (toJson $release) (toJson (list $root.Release.Namespace $root.Release.Name))) }}true{{ end }}
{{- end }}
