{{- define "seesay.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- $name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "seesay.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "seesay.labels" -}}
{{ include "seesay.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "seesay.maxServers" -}}
{{ if .Values.autoscaling.enabled }}{{ max .Values.autoscaling.maxReplicas .Values.server.replicas }}{{ else }}{{ .Values.server.replicas }}{{ end }}
{{- end }}

{{- define "seesay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "seesay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "seesay.environment" -}}
{{- with .Values.existingSecret }}
envFrom: [{secretRef: {name: {{ . }}}}]
{{- end }}
{{- end }}

{{- define "seesay.traces" -}}
{{- with .Values.otlpTracesEndpoint }}
- --otlp-traces-endpoint
- {{ . | quote }}
{{- end }}
{{- end }}
