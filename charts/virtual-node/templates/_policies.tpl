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

{{/* A policy for some ServiceAccounts of this release, and its binding: (list $ "component" (list "account") $spec). It does not
apply to other users. */}}
{{- define "virtual-node.policy" }}
{{- $root := index . 0 }}{{ $component := index . 1 }}{{ $spec := index . 3 | fromYaml }}
{{- $users := list }}
{{- range index . 2 }}{{ $users = append $users (printf "system:serviceaccount:%s:%s" $root.Release.Namespace .) }}{{ end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ include "virtual-node.clusterName" (list $root $component) }}
  {{- include "virtual-node.marks" (list $root $component) | nindent 2 }}
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
  {{- include "virtual-node.marks" (list $root $component) | nindent 2 }}
spec:
  policyName: {{ include "virtual-node.clusterName" (list $root $component) }}
  validationActions: [Deny]
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
