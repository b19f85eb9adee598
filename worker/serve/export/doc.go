// Package export pushes profiles to a receiver: to Pyroscope, and by OTLP over HTTP. It makes a series of each type of
// backend, keeps profiles on disk while the receiver is down, and gives up old ones.
//
// The messages are written by hand: push.v1.PushRequest of Pyroscope's API 1.6, and ExportProfilesServiceRequest of
// opentelemetry-proto 1.10, whose profiles signal is an alpha. The package must not know how profiles are made.
package export
