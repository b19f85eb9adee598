// Package export pushes profiles to receivers: to Pyroscope, and by OTLP over HTTP. It divides each profile by type of
// backend. While a receiver is down, profiles wait on disk, and old profiles are dropped.
//
// The messages are encoded by hand: push.v1.PushRequest of Pyroscope's API 1.6, and ExportProfilesServiceRequest of
// opentelemetry-proto 1.10 (profiles are an alpha feature of OpenTelemetry). The package must not know how profiles are
// made.
package export
