// Package serving contains only tests. They test the worker's HTTP listener from outside, with real servers, a real Prometheus
// and "go tool pprof".
package serving
