{{- /* Labels of every object, in place of those of kubectl. */ -}}
{{- define "labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "image" -}}
{{- with .Values.image -}}
{{ ($.Values.global).imageRegistry | default .registry }}/{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "object" }}
---
{{ toYaml . }}
{{- end }}
