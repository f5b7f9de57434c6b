{{/* ServiceAccounts and their RBAC objects. */}}

{{/* Name of a component's ServiceAccount: (list $ "webhook" .Values.webhook) */}}
{{- define "virtual-node.serviceAccountName" -}}
{{- $values := index . 2 -}}
{{- if $values.serviceAccount.create }}
{{- default (include "virtual-node.component" .) $values.serviceAccount.name }}
{{- else }}
{{- required (printf "%s.serviceAccount.name: required, because serviceAccount.create is false" (index . 1)) $values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Names that replace the placeholders in resourceNames (controller_runtime/rights.py), as YAML map: placeholder → names. */}}
{{- define "virtual-node.rightNames" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}
{{- $nodes := include "virtual-node.nodeNames" $root | fromYamlArray }}
{{- if eq $component "descheduler" }}{{ $nodes = concat $nodes ($root.Values.descheduler.virtualNodes | default list) | uniq }}{{ end }}
{{- $secrets := list }}
{{- if and $root.Values.webhook.enabled (not $root.Values.webhook.tls.secretName) }}{{ $secrets = list (include "virtual-node.webhookSecret" $root) }}{{ end }}
{{- $webhook := include "virtual-node.clusterName" (list $root "webhook") }}
{{- $extender := list }}
{{- if include "virtual-node.extenderOwnTls" $root }}{{ $extender = list (include "virtual-node.extenderSecret" $root) (include "virtual-node.schedulerSecret" $root) }}{{ end }}
{{- $names := dict "<extender-secret>" $extender "<virtual-node>" $nodes "<webhook-configuration>" (list $webhook) "<webhook-secret>" $secrets }}
{{- $_ := set $names "<lease>" (list (include "virtual-node.fullname" $root)) }}
{{- $_ := set $names "<extender-lease>" (list (include "virtual-node.component" (list $root "multi-scheduler"))) }}
{{- $_ := set $names "<component-lease>" (include "virtual-node.leases" $root | splitList ",") }}
{{- $_ := set $names "<inspection-history>" (list (include "virtual-node.component" (list $root "inspection"))) }}
{{- $tokens := list }}
{{- range $root.Values.virtualNode.clusters }}{{ $tokens = concat $tokens (include "virtual-node.tokenSecrets" . | fromYamlArray) }}{{ end }}
{{- $_ := set $names "<token-secret>" $tokens }}
{{- toYaml $names }}
{{- end }}

{{/* Names of the Leases of all components, separated by commas. */}}
{{- define "virtual-node.leases" -}}
{{ include "virtual-node.fullname" . }},virtual-node-webhook,virtual-node-descheduler,virtual-node-annotator,{{ include "virtual-node.component" (list . "multi-scheduler") }},{{ include "virtual-node.component" (list . "scheduler") }}
{{- end }}

{{/* Rules with the placeholders replaced by names: (list $ "webhook" $rules). A rule is omitted if its placeholders have no
names, because a rule without resourceNames applies to all objects. */}}
{{- define "virtual-node.resolvedRules" -}}
{{- $names := include "virtual-node.rightNames" . | fromYaml }}
{{- $resolved := list }}
{{- range index . 2 }}
{{- $rule := . }}{{ $found := list }}
{{- range $text := .resourceNames | default list }}
{{- $known := list $text }}
{{- range $place, $values := $names }}
{{- if contains $place $text }}
{{- $known = list }}
{{- range $values }}{{ $known = append $known (replace $place (toString .) $text) }}{{ end }}
{{- end }}
{{- end }}
{{- $found = concat $found $known }}
{{- end }}
{{- if $found }}{{ $rule = merge (dict "resourceNames" (uniq $found)) (omit . "resourceNames") }}{{ end }}
{{- if or $found (not .resourceNames) }}{{ $resolved = append $resolved $rule }}{{ end }}
{{- end }}
{{- toYaml $resolved }}
{{- end }}

{{/* ServiceAccount and RBAC objects of a component: (list $ "webhook" .Values.webhook (list "upper")) */}}
{{- define "virtual-node.account" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $values := index . 2 }}{{ $sets := index . 3 }}
{{- if $values.serviceAccount.create }}
{{- include "virtual-node.serviceAccount" (list $root $component (include "virtual-node.serviceAccountName" .) $values.serviceAccount.annotations) }}
{{- end }}
{{- if $root.Values.rbac.create }}
{{- $table := camelcase (replace "-" "_" $component) | untitle }}
{{- $rules := include "virtual-node.rules" (list $root $table $sets) | fromYaml }}
{{- include "virtual-node.roles" (list $root $component (include "virtual-node.serviceAccountName" .) $rules) }}
{{- end }}
{{- end }}

{{/* Names of the sets in files/rights.yaml for the kinds that follow pods, as YAML list: (list $ "follow") */}}
{{- define "virtual-node.followSets" -}}
{{- $values := (index . 0).Values.virtualNode }}{{ $prefix := index . 1 }}
{{- $kinds := dig "defaults" "follow" list ($values.clusterProfiles | default dict) }}
{{- range $values.clusters }}{{ $kinds = concat $kinds (dig "config" "follow" list .) }}{{ end }}
{{- $sets := list }}
{{- range uniq $kinds }}{{ $sets = append $sets (printf "%s-%s" $prefix .) }}{{ end }}
{{- toYaml $sets }}
{{- end }}

{{/* Rules of sets in files/rights.yaml by namespace, as YAML map: (list $ "virtualNode" (list "upper")) */}}
{{- define "virtual-node.rules" -}}
{{- $table := get ((index . 0).Files.Get "files/rights.yaml" | fromYaml) (index . 1) }}
{{- $rules := dict }}
{{- range index . 2 }}
{{- range $namespace, $found := get $table . }}
{{- $_ := set $rules $namespace (concat (get $rules $namespace | default list) $found) }}
{{- end }}
{{- end }}
{{- toYaml $rules }}
{{- end }}

{{/* ServiceAccount and RBAC objects of a hook, which exist only while the hook runs:
(list $ "uninstall" (list "uninstall") $annotations). The third argument has the sets of rights. */}}
{{- define "virtual-node.hookAccount" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $annotations := merge (dict "helm.sh/hook-weight" "-5") (index . 3) }}
{{- $name := include "virtual-node.component" . }}
{{- include "virtual-node.serviceAccount" (list $root $component $name $annotations) }}
{{- $rules := include "virtual-node.rules" (list $root "virtualNode" (index . 2)) | fromYaml }}
{{- include "virtual-node.roles" (list $root $component $name $rules $annotations) }}
{{- end }}

{{/* ServiceAccount: (list $ "webhook" "name" $annotations). Pods that need its token must set automountServiceAccountToken. */}}
{{- define "virtual-node.serviceAccount" }}
{{- $root := index . 0 }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ index . 2 | toYaml }}
  namespace: {{ toYaml $root.Release.Namespace }}
  {{- include "virtual-node.marks" (list $root (index . 1) (index . 3)) | nindent 2 }}
automountServiceAccountToken: false
{{- end }}

{{/* Roles, ClusterRoles and their bindings: (list $ "webhook" "account" $rules [$annotations]). $rules maps a namespace to its
rules, as in files/rights.yaml. */}}
{{- define "virtual-node.roles" -}}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $account := index . 2 }}{{ $annotations := dict }}
{{- if gt (len .) 4 }}{{ $annotations = index . 4 }}{{ end }}
{{- $marks := include "virtual-node.marks" (list $root $component $annotations) }}
{{- range $namespace, $rules := index . 3 }}
{{- $resolved := include "virtual-node.resolvedRules" (list $root $component $rules) | fromYamlArray }}
{{- if $resolved }}
{{- $own := eq $namespace "<own>" }}{{ $profiles := eq $namespace "<profiles>" }}
{{- $kind := ternary "ClusterRole" "Role" (eq $namespace "<cluster>") }}
{{- $name := include (ternary "virtual-node.component" "virtual-node.clusterName" $own) (list $root $component) }}
{{- $where := ternary $root.Release.Namespace $namespace $own }}
{{- if $profiles }}{{ $name = printf "%s-profiles" $name }}{{ $where = $root.Values.virtualNode.clusterProfiles.namespace }}{{ end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- if eq $kind "Role" }}
  namespace: {{ toYaml $where }}
  {{- end }}
  {{- $marks | nindent 2 }}
rules:
  {{- toYaml $resolved | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- if eq $kind "Role" }}
  namespace: {{ toYaml $where }}
  {{- end }}
  {{- $marks | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $name }}
subjects:
  - {kind: ServiceAccount, name: {{ toYaml $account }}, namespace: {{ toYaml $root.Release.Namespace }}}
{{- end }}
{{- end }}
{{- end }}
