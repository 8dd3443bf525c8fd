{{/* Names of objects are fixed: a cluster has one driver of this name, so that a second release is refused. */}}
{{- define "bulkhead-csi.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "bulkhead-csi.image" -}}
image: {{ printf "%s:%s" .image.repository .image.tag | quote }}
{{- with .root.Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "bulkhead-csi.node-name" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{/* What all sidecars have. The driver's socket is root's; nothing else of root's is needed. */}}
{{- define "bulkhead-csi.sidecar" -}}
securityContext:
  runAsUser: 0
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
resources:
  {{- toYaml .resources | nindent 2 }}
volumeMounts:
  - name: socket
    mountPath: /csi
{{- end }}
