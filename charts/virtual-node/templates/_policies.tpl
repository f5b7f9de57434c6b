{{/* ValidatingAdmissionPolicies: restrictions of this release's ServiceAccounts that RBAC cannot express. */}}

{{/* "true" if policies are created: admissionPolicy.enabled, or with "auto" if the API server supports them. */}}
{{- define "virtual-node.admissionPolicy" -}}
{{- $enabled := .Values.admissionPolicy.enabled }}
{{- if eq (toString $enabled) "auto" }}
{{- /* APIVersions contains kinds only if Helm has read them from a cluster, which `helm template` does not. */}}
{{- if .Capabilities.APIVersions.Has "v1/Pod" }}
{{- $enabled = .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- else }}
{{- $enabled = semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
{{- end }}
{{- end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{/* A policy for some ServiceAccounts of this release, and its binding: (list $ "component" (list "account") $spec
[$annotations]). A name with a colon is that of another user. It does not apply to other users. Expressions can use the variables before, after and kind. */}}
{{- define "virtual-node.policy" }}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $spec := index . 3 | fromYaml }}
{{- $marks := include "virtual-node.marks" (list $root $component (gt (len .) 4 | ternary (last .) dict)) }}
{{- /* Explicit defaults, because the API server sets them and a comparison with the manifest would report a change. */}}
{{- $rules := list }}
{{- range $spec.resourceRules }}{{ $rules = append $rules (merge (dict "scope" "*") .) }}{{ end }}
{{- $constraints := dict "matchPolicy" "Equivalent" "namespaceSelector" dict "objectSelector" dict "resourceRules" $rules }}
{{- $before := dict "name" "before" "expression" "dyn(oldObject)" }}
{{- $after := dict "name" "after" "expression" "dyn(object)" }}
{{- $kind := dict "name" "kind" "expression" "request.resource.resource" }}
{{- $variables := concat (list $before $after $kind) ($spec.variables | default list) }}
{{- $validations := list }}
{{- range $spec.validations }}{{ $validations = append $validations (merge (dict "reason" "Forbidden") .) }}{{ end }}
{{- $spec = dict "matchConstraints" $constraints "variables" $variables "validations" $validations }}
{{- $users := list }}
{{- range index . 2 }}
{{- $users = append $users (contains ":" . | ternary . (printf "system:serviceaccount:%s:%s" $root.Release.Namespace .)) }}
{{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "virtual-node.clusterName" (list $root $component) }}
  {{- $marks | nindent 2 }}
spec:
  failurePolicy: Fail
  matchConditions:
    - name: own-accounts
      expression: {{ printf "request.userInfo.username in %s" (toJson $users) | toYaml }}
  {{- toYaml $spec | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "virtual-node.clusterName" (list $root $component) }}
  {{- $marks | nindent 2 }}
spec:
  policyName: {{ include "virtual-node.clusterName" (list $root $component) }}
  validationActions: [Deny]
{{- end }}

{{/* Namespaces in which accounts of this release may not act for users, as a JSON list, which is also valid CEL. */}}
{{- define "virtual-node.protectedNamespaces" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) (.Values.admissionPolicy.protectedNamespaces | default list) | uniq | toJson }}
{{- end }}

{{/* The same for tokens of pods. Pods of the release's namespace may run on virtual nodes, unless a value protects it. */}}
{{- define "virtual-node.tokenlessNamespaces" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease") (.Values.admissionPolicy.protectedNamespaces | default list) | uniq | toJson }}
{{- end }}

{{/* CEL: an update does not change the object's labels, owners and, except for the given ones, other fields of its metadata:
(list "annotations" "finalizers"). Owners matter, because the garbage collector deletes an object without its owner. */}}
{{- define "virtual-node.sameMetadata" -}}
{{ toJson (concat (list "labels" "ownerReferences") .) }}.all(field, variables.after.metadata[?field] == variables.before.metadata[?field])
{{- end }}

{{/* Names of this release's ServiceAccounts except the virtual node's, as a JSON list, which is also valid CEL. */}}
{{- define "virtual-node.otherAccounts" -}}
{{- $names := list (include "virtual-node.component" (list . "uninstall")) (include "virtual-node.component" (list . "test")) }}
{{- if include "virtual-node.inspection" . }}{{ $names = append $names (include "virtual-node.component" (list . "inspection")) }}{{ end }}
{{- if .Values.webhook.enabled }}{{ $names = append $names (include "virtual-node.serviceAccountName" (list . "webhook" .Values.webhook)) }}{{ end }}
{{- if .Values.descheduler.enabled }}{{ $names = append $names (include "virtual-node.serviceAccountName" (list . "descheduler" .Values.descheduler)) }}{{ end }}
{{- if .Values.swarm.enabled }}{{ $names = append $names (include "virtual-node.serviceAccountName" (list . "swarm" .Values.swarm)) }}{{ end }}
{{- if include "virtual-node.annotator" . }}{{ $names = append $names (include "virtual-node.serviceAccountName" (list . "annotator" .Values.annotator)) }}{{ end }}
{{- if include "virtual-node.multiScheduler" . }}
{{- $names = append $names (include "virtual-node.serviceAccountName" (list . "multi-scheduler" .Values.multiScheduler)) }}
{{- $names = append $names (include "virtual-node.component" (list . "scheduler")) }}
{{- end }}
{{- toJson $names }}
{{- end }}
